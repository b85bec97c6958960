// Parts of a run's page that need no script: text and tables.
#pragma once
#include <string>

#include "report/page/charts.hpp"
#include "report/page/page.hpp"

namespace tessera {

std::string head_section(const PageInput& in, const RunFigures& f);
std::string advice_section(const std::vector<Advice>& advice, const RunFigures& f, bool has_deck);
std::string chart_figure(const Chart& chart, const RunHistory& run);
std::string parts_table(const RunFigures& f);
std::string step_section(const PageInput& in, const RunFigures& f);
std::string ranks_section(const PageInput& in, const RunFigures& f);
std::string memory_section(const PageInput& in);
std::string goodput_section(const RunFigures& f);
std::string events_section(const RunHistory& run);
std::string deck_section(const PageInput& in);
std::string environment_section(const RunHistory& run);
std::string licence_section();

/// What a start was told and came to, that a page shows of any of its rows: "resumed from step 12, 2 ranks".
std::string event_text(const io::Event& event);
/// Events of a run; of one from before there were any those that metrics.jsonl tells.
std::vector<io::Event> events_of(const RunHistory& run);

}  // namespace tessera
