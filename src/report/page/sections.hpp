// Parts of a run's page that need no script: text and tables. A part of which nothing was recorded is an empty text; unmeasured_section
// says what would record it.
#pragma once
#include <string>

#include "report/page/charts.hpp"
#include "report/page/page.hpp"

namespace tessera {

std::string head_section(const PageInput& in, const RunFigures& f);
std::string advice_section(const PageInput& in, const RunFigures& f, const std::vector<Advice>& advice);
/// `run`: whose first and last numbers are told to who cannot see the chart; none of several runs.
std::string chart_figure(const Chart& chart, const RunHistory* run);
/// With the choice of their axis: values of it with their names, the first of which holds.
std::string charts_box(const std::string& figures, const std::vector<std::pair<std::string, std::string>>& axes);
std::string curves_section(const std::vector<Chart>& charts, const RunHistory& run);
std::string time_section(const std::vector<Chart>& charts, const RunHistory& run, const RunFigures& f);
std::string rank_times_section(const RunHistory& run);
std::string unmeasured_section(const PageInput& in, const RunFigures& f, const std::vector<Chart>& charts);
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
