// Sections of what happened: ranks of a traced step, events, decks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "report/page/html.hpp"
#include "report/page/reduce.hpp"
#include "report/page/sections.hpp"

namespace tessera {
namespace {

constexpr std::size_t most_rank_rows = 64, most_event_rows = 200;

/// A cell of a heat map: how far a time is from the usual one.
std::string heat_cell(double seconds, double usual) {
  const double off = usual > 0 ? seconds / usual - 1 : 0;
  const double strength = std::min(1.0, std::abs(off) / 0.5);
  return fmt::format("<td class=\"number {}\" style=\"--heat:{:.2f}\" title=\"{:+.1f} % of the median\">{}</td>", off > 0 ? "hot" : "cold",
                     strength, 100 * off, html(span_text(seconds)));
}

/// The same, without its number.
std::string small_cell(std::int64_t step, double seconds, double usual) {
  if (!std::isfinite(seconds)) return "<td></td>";
  const double off = usual > 0 ? seconds / usual - 1 : 0;
  return fmt::format("<td class=\"{}\" style=\"--heat:{:.2f}\" title=\"up to step {}: {}, {:+.1f} % of the median\"></td>",
                     off > 0 ? "hot" : "cold", std::min(1.0, std::abs(off) / 0.5), step, html(span_text(seconds)), 100 * off);
}

double middle(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

struct HeatColumn {
  std::string name;
  std::vector<double> seconds;  ///< by place in StepTraces::ranks
  double usual = 0;
};

std::vector<HeatColumn> heat_columns(const StepTraces& traced) {
  std::vector<HeatColumn> columns;
  const auto add = [&](const std::string& name, const auto& seconds_of) {
    HeatColumn column{.name = name, .seconds = {}};
    for (const RankTimes& rank : traced.ranks) column.seconds.push_back(seconds_of(rank));
    column.usual = middle(column.seconds);
    columns.push_back(std::move(column));
  };
  add("whole step", [](const RankTimes& r) { return r.seconds; });
  add("compute", [](const RankTimes& r) { return r.compute; });
  add("exposed", [](const RankTimes& r) { return r.exposed; });
  add("idle", [](const RankTimes& r) { return r.idle; });
  std::vector<std::string> kinds;
  for (const RankTimes& rank : traced.ranks)
    for (const auto& [kind, seconds] : rank.kinds)
      if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
  for (const std::string& kind : kinds)
    add(kind, [&](const RankTimes& r) {
      const auto at = std::ranges::find(r.kinds, kind, &std::pair<std::string, double>::first);
      return at == r.kinds.end() ? 0.0 : at->second;
    });
  return columns;
}

/// Of the latest starts that left one, the newest first: at most two.
std::vector<std::string> decks_of_starts(const RunHistory& run) {
  std::vector<std::string> decks;
  for (auto at = run.events.rbegin(); at != run.events.rend() && decks.size() < 2; ++at)
    if (at->event == "start" && at->fields.contains("deck")) decks.push_back(io::field_text(at->fields, "deck"));
  return decks;
}

std::string seconds_text(const io::Event& event, const char* key) {
  const double seconds = io::field_number(event.fields, key).value_or(-1);
  return seconds < 0 ? "" : span_text(seconds);
}

}  // namespace

std::string ranks_section(const PageInput& in, const RunFigures& f) {
  if (!in.traced) return "";
  std::string body;
  const std::vector<HeatColumn> columns = heat_columns(*in.traced);
  const std::vector<double>& compute = columns[1].seconds;
  std::vector<std::size_t> order(in.traced->ranks.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (order.size() > most_rank_rows) {  // those that are furthest from the others
    std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return std::abs(compute[i] - columns[1].usual); });
    order.resize(most_rank_rows);
    std::ranges::sort(order);
    body += fmt::format("<p>The {} of {} ranks whose compute is furthest from the median.</p>\n", most_rank_rows, in.traced->ranks.size());
  }
  body += fmt::format(
      "<div class=\"wide\"><table class=\"heat\"><caption>Seconds in step {}, coloured by their distance to the column's median"
      "</caption><thead><tr><th scope=\"col\">rank</th>",
      in.traced->step);
  for (const HeatColumn& column : columns) body += "<th scope=\"col\" class=\"number\">" + html(column.name) + "</th>";
  body += "</tr></thead><tbody>";
  for (const std::size_t i : order) {
    body += fmt::format("<tr><th scope=\"row\">{}</th>", in.traced->ranks[i].rank);
    for (const HeatColumn& column : columns) body += heat_cell(column.seconds[i], column.usual);
    body += "</tr>\n";
  }
  body += "</tbody></table></div>\n<p class=\"help\">A collective's time includes the wait for other ranks: the slowest rank waits least.";
  body += f.slow.empty() ? " No rank computes a twentieth longer than the median." : "";
  body += "</p>\n";
  return "<section id=\"ranks\"><h2>Ranks</h2>\n" + body + "</section>\n";
}

std::string rank_times_section(const RunHistory& run) {
  constexpr std::size_t most_columns = 48;
  std::vector<std::pair<int, const std::vector<double>*>> ranks;
  for (const auto& [name, column] : run.steps.group("rank_seconds/")) ranks.emplace_back(std::atoi(name.c_str()), column);
  if (ranks.size() < 2) return "";
  std::ranges::sort(ranks);
  std::vector<std::size_t> rows;  // that have them
  for (std::size_t i = 0; i < run.steps.rows(); ++i)
    if (std::ranges::any_of(ranks, [&](const auto& rank) { return std::isfinite((*rank.second)[i]); })) rows.push_back(i);
  const std::vector<std::size_t> ends = bucket_ends(rows.size(), most_columns);
  std::vector<std::vector<double>> times(ranks.size());  // by rank, of each bucket
  std::vector<double> usual;
  for (std::size_t begin = 0; const std::size_t end : ends) {
    std::vector<double> of_bucket;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      double sum = 0, count = 0;
      for (std::size_t i = begin; i < end; ++i)
        if (const double v = (*ranks[r].second)[rows[i]]; std::isfinite(v)) sum += v, ++count;
      times[r].push_back(count > 0 ? sum / count : std::nan(""));
      if (count > 0) of_bucket.push_back(times[r].back());
    }
    usual.push_back(middle(of_bucket));
    begin = end;
  }
  std::vector<std::size_t> order(ranks.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::string body;
  if (order.size() > most_rank_rows) {
    const auto furthest = [&](std::size_t r) {
      double most = 0;
      for (std::size_t b = 0; b < usual.size(); ++b)
        if (std::isfinite(times[r][b]) && usual[b] > 0) most = std::max(most, std::abs(times[r][b] / usual[b] - 1));
      return most;
    };
    std::ranges::stable_sort(order, std::greater(), furthest);
    order.resize(most_rank_rows);
    std::ranges::sort(order);
    body += fmt::format("<p>The {} of {} ranks that were furthest from the median.</p>\n", most_rank_rows, ranks.size());
  }
  body += fmt::format(
      "<div class=\"wide\"><table class=\"heat over-time\"><caption>How long each rank computes in a step, from step {} on the left to "
      "step {}"
      "</caption><tbody>",
      rows.empty() ? 0 : run.steps.step[rows.front()], rows.empty() ? 0 : run.steps.step[rows.back()]);
  for (const std::size_t r : order) {
    body += fmt::format("<tr><th scope=\"row\">rank {}</th>", ranks[r].first);
    for (std::size_t b = 0; b < usual.size(); ++b) body += small_cell(run.steps.step[rows[ends[b] - 1]], times[r][b], usual[b]);
    body += "</tr>\n";
  }
  body +=
      "</tbody></table></div>\n<p class=\"help\">Red: longer than the median of all ranks at that time, blue: shorter. Waits for other "
      "ranks are not included.</p>\n";
  return "<section id=\"rank-times\"><h2>Ranks over time</h2>\n" + body + "</section>\n";
}

std::string event_text(const io::Event& event) {
  const Json& e = event.fields;
  if (event.event == "start") {
    const double resumed = io::field_number(e, "resumed_from").value_or(0), ranks = io::field_number(e, "ranks").value_or(0),
                 lost = io::field_number(e, "lost_steps").value_or(0);
    std::string text = resumed > 0 ? fmt::format("resumes from step {:.0f}", resumed) : "from new weights";
    if (ranks > 0) text += fmt::format(", {:.0f} rank{}", ranks, ranks == 1 ? "" : "s");
    if (const std::string layout = io::field_text(e, "layout"); !layout.empty()) text += ", " + layout;
    if (lost > 0) text += fmt::format(", {:.0f} steps are repeated", lost);
    return text;
  }
  if (event.event == "warning" || event.event == "early_stop" || event.event == "stall" || event.event == "phase")
    return io::field_text(e, "text");
  if (event.event == "end") return io::field_text(e, "reason");
  if (event.event == "evaluation") return fmt::format("loss {:.4g}", io::field_number(e, "val_loss").value_or(std::nan("")));
  std::string text = seconds_text(event, "seconds");
  if (const std::string stall = seconds_text(event, "stall_seconds"); !stall.empty()) text += ", steps waited for " + stall;
  return text;
}

std::vector<io::Event> events_of(const RunHistory& run) {
  if (!run.events.empty()) return run.events;
  std::vector<io::Event> events;
  for (const StartRow& start : run.starts)
    events.push_back(
        {.time = start.time, .step = start.step, .event = "start", .fields = {{"ranks", start.ranks}, {"resumed_from", start.step}}});
  for (const SaveRow& save : run.saves)
    events.push_back({.time = save.time,
                      .step = save.step,
                      .event = save.weights ? "save_weights" : "save",
                      .fields = {{"seconds", save.seconds}, {"stall_seconds", save.stall}}});
  std::ranges::stable_sort(events, {}, &io::Event::step);
  return events;
}

std::string events_section(const RunHistory& run) {
  const std::vector<io::Event> events = events_of(run);
  if (events.empty() && run.checkpoints.empty()) return "";
  std::map<std::string, std::int64_t> counts;
  std::vector<std::vector<std::string>> rows;
  for (auto at = events.rbegin(); at != events.rend(); ++at) {
    ++counts[at->event];
    if (at->event != "evaluation" && at->event != "training" && rows.size() < most_event_rows)
      rows.push_back({at->event, fmt::format("{}", at->step), moment_text(at->time), event_text(*at)});
  }
  std::string body;
  for (const auto& [name, count] : counts) body += fmt::format("{}{} {}", body.empty() ? "" : ", ", html(name), count);
  if (!run.checkpoints.empty())
    body += fmt::format("; {} checkpoints remain, the newest of step {}", run.checkpoints.size(), run.checkpoints.back());
  body = "<p>" + body + ".</p>\n";
  if (!rows.empty())
    body += fmt::format("<details{}><summary>The newest first{}</summary>{}</details>\n", rows.size() <= 30 ? " open" : "",
                        rows.size() == most_event_rows ? ", and no older ones" : "", html_table({"event", "step", "when", "what"}, rows));
  return "<section id=\"events\"><h2>Events</h2>\n" + body + "</section>\n";
}

std::string deck_section(const PageInput& in) {
  std::string body;
  const std::vector<std::string> decks = decks_of_starts(in.run);
  if (decks.empty() && in.run.deck.empty()) return "";
  if (decks.size() < 2) {
    if (!decks.empty()) body += "<p>The run has had one start, with this deck.</p>\n";
  } else {
    const ParsedDeck now = parse_stored_deck(decks[0], "the last start's deck"), before = parse_stored_deck(decks[1], "the deck before");
    if (!now.faults.empty() || !before.faults.empty()) {
      body += "<p class=\"absent\">This program cannot read the decks of both last starts, so the changes are not known.</p>\n";
    } else {
      std::string list;
      for (std::string line : deck_differences(before.deck, now.deck)) {
        if (const std::size_t here = line.rfind(", here "); here != line.npos) line.replace(here, 7, ", now ");
        list += "<li><code>" + html(line) + "</code></li>\n";
      }
      body +=
          list.empty() ? "<p>The same as of the start before.</p>\n" : "<p>Changes since the start before:</p><ul>\n" + list + "</ul>\n";
    }
  }
  body += in.run.deck.empty()
              ? ""
              : "<details><summary>deck.toml, as the last start resolved it</summary><pre>" + html(in.run.deck) + "</pre></details>\n";
  return "<section id=\"deck\"><h2>Deck</h2>\n" + body + "</section>\n";
}

}  // namespace tessera
