#include "report/page/sections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ranges>

#include "base/types.hpp"
#include "report/page/html.hpp"

namespace tessera {
namespace {

std::string section(const char* id, const char* title, const std::string& body) {
  return fmt::format("<section id=\"{}\"><h2>{}</h2>\n{}</section>\n", id, title, body);
}

std::string paragraph(const std::string& text) { return "<p>" + html_words(text) + "</p>\n"; }
std::string absent(const std::string& text) { return "<p class=\"absent\">" + html_words(text) + "</p>\n"; }

std::string tile(const std::string& name, const std::string& value, const std::string& more = "") {
  return fmt::format("<div class=\"tile\"><dt>{}</dt><dd>{}{}</dd></div>\n", html(name), html(value),
                     more.empty() ? "" : "<small>" + html(more) + "</small>");
}

std::string bytes_text(std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

/// Of the whole, in the colour of a class.
std::string bar_part(const std::string& name, double share, std::size_t colour) {
  return fmt::format("<span class=\"c{}\" style=\"width:{:.3f}%\" title=\"{}: {}\"></span>", colour, 100 * share, html(name),
                     percent(share));
}

std::string state_of(const PageInput& in, const RunFigures& f) {
  for (auto at = in.run.events.rbegin(); at != in.run.events.rend(); ++at) {
    if (at->event == "end") return io::field_text(at->fields, "reason");
    if (at->event == "start") break;
  }
  if (in.deck && in.deck->run.steps > 0 && f.steps_done >= in.deck->run.steps) return "finished";
  return in.run.events.empty() ? "" : "running, or killed";
}

/// The text of a value of an event, whatever it is.
std::string text_of(const Json& value) { return value.is_string() ? value.text() : value.dump(-1, BadText::replace); }

}  // namespace

std::string head_section(const PageInput& in, const RunFigures& f) {
  const std::string title = title_of_run(in.run.folder);
  std::string facts;
  const auto add = [&](const std::string& text) {
    if (!text.empty()) facts += (facts.empty() ? "" : " · ") + html(text);
  };
  add(in.deck && in.deck->run.steps > 0 ? fmt::format("step {} of {}", f.steps_done, in.deck->run.steps)
                                        : fmt::format("step {}", f.steps_done));
  add(f.ranks == 1 ? "1 rank" : fmt::format("{} ranks", f.ranks));
  add(in.state.empty() ? state_of(in, f) : in.state);
  add(in.health);
  if (!in.run.steps.time.empty()) add("last step " + moment_text(in.run.steps.time.back()));
  if (in.deck && !in.deck->run.name.empty() && in.deck->run.name != title) add("named " + in.deck->run.name);
  add(in.run.folder);
  if (in.reload_seconds > 0) add(fmt::format("live: this page reloads every {} s, but not while you zoom", in.reload_seconds));
  std::string text = fmt::format("<header><h1>{}</h1>\n<p class=\"facts\">{}</p>\n<dl class=\"tiles\">\n", html(title), facts);
  if (f.loss) text += tile("loss", fmt::format("{:.4g}", *f.loss), "last step");
  if (f.best_validation)
    text += tile("validation", fmt::format("{:.4g}", *f.best_validation), fmt::format("best, of step {}", f.best_step));
  if (f.tokens_per_second > 0) text += tile("throughput", human_count(f.tokens_per_second), "tokens/s");
  if (f.step_seconds > 0) text += tile("step", span_text(f.step_seconds), "median");
  if (f.mfu) text += tile(mfu_name(f.mfu->of_peak), percent(f.mfu->full), fmt::format("{} causal", percent(f.mfu->causal)));
  if (f.goodput) text += tile("goodput", percent(f.goodput->share()), "of " + span_text(f.goodput->wall));
  if (f.starts > 0) text += tile("starts", fmt::format("{}", f.starts), f.killed > 0 ? fmt::format("{} killed", f.killed) : "");
  return text + "</dl></header>\n";
}

std::string advice_section(const PageInput& in, const RunFigures& f, const std::vector<Advice>& advice) {
  constexpr std::size_t most_warnings = 5;
  std::string body;
  // The newest first; those of stalls are in the advice on them.
  std::size_t told = 0;
  for (const std::string& warning : f.warnings | std::views::reverse) {
    if (std::ranges::find(f.stalls, warning, &StalledStep::text) != f.stalls.end()) continue;
    if (++told <= most_warnings) body += fmt::format("<li class=\"warning\">Warned: {}</li>\n", html_words(warning));
  }
  if (told > most_warnings) body += fmt::format("<li>{} earlier warnings are below.</li>\n", told - most_warnings);
  for (const Advice& a : advice) {
    body += fmt::format("<li>{} {}", html_words(a.found), html_words(a.remedy));
    if (!a.change.empty()) body += " <code>" + html(a.change) + "</code>";
    if (!a.simulated.empty()) body += " <em>" + html(a.simulated) + "</em>";
    body += "</li>\n";
  }
  if (!in.deck) body += "<li class=\"absent\">deck.toml cannot be read, so keys are not named.</li>\n";
  const bool well = body.empty() && in.health.empty();
  if (body.empty() && !well) body = fmt::format("<li class=\"warning\">`tessera runs` says: {}</li>\n", html(in.health));
  return section("advice", "Advice",
                 well ? paragraph("The recorded figures show nothing unusual.") : "<ul class=\"advice\">\n" + body + "</ul>\n");
}

std::string chart_figure(const Chart& chart, const RunHistory* run) {
  if (chart.series.empty()) return "";
  std::string title = html(chart.title);
  if (!chart.unit.empty()) title += " <small>" + html(chart.unit) + "</small>";
  std::string what = chart.title;
  const std::vector<double>* column = run ? run->steps.find(chart.series.front().first) : nullptr;
  const auto is_number = [](double v) { return std::isfinite(v); };
  if (column)
    if (const auto first = std::ranges::find_if(*column, is_number); first != column->end()) {
      const auto last = std::find_if(column->rbegin(), column->rend(), is_number);
      what += fmt::format(" over steps, {}: {:.4g} at first, {:.4g} at last", chart.series.front().second, *first, *last);
    }
  std::string boxes;
  if (chart.clipped)
    boxes +=
        fmt::format("<label hidden id=\"scale-{}\"><input type=\"checkbox\" data-scale=\"{}\"> to the highest</label>", chart.id, chart.id);
  if (!chart.stacked)
    boxes += fmt::format("<label><input type=\"checkbox\" data-log=\"{}\"{}> log</label>", chart.id, chart.logarithmic ? " checked" : "");
  return fmt::format(
      "<figure class=\"chart{}\"><figcaption><h3>{}</h3><span>{}</span></figcaption>\n<div class=\"plot\" id=\"chart-{}\" role=\"img\" "
      "aria-label=\"{}\"></div>\n"
      "<div class=\"legend\" id=\"legend-{}\"></div>{}</figure>\n",
      chart.stacked ? " whole" : "", title, boxes, chart.id, html(what), chart.id,
      chart.help.empty() ? "" : "<p class=\"help\">" + html(chart.help) + "</p>");
}

std::string charts_box(const std::string& figures, const std::vector<std::pair<std::string, std::string>>& axes) {
  std::string options;
  for (const auto& [value, name] : axes) options += fmt::format("<option value=\"{}\">{}</option>", value, html(name));
  return "<p class=\"choose\" id=\"choose\" hidden><label>over <select id=\"axis\">" + options +
         "</select></label> Drag over a chart to zoom, double-click to see all.</p>\n<div class=\"charts\">\n" + figures + "</div>";
}

std::string curves_section(const std::vector<Chart>& charts, const RunHistory& run) {
  std::string figures;
  for (const Chart& chart : charts)
    if (!chart.stacked) figures += chart_figure(chart, &run);
  if (figures.empty())
    return section("curves", "Curves", absent("No step is made yet.") + "<div hidden>" + charts_box("", {{"step", "steps"}}) + "</div>");
  return section("curves", "Curves", charts_box(figures, {{"step", "steps"}, {"time", "hours"}}));
}

namespace {

std::string parts_table(const RunFigures& f) {
  std::vector<std::pair<std::string, double>> parts(f.shares.begin(), f.shares.end());
  std::ranges::stable_sort(parts, std::greater(), [](const auto& part) { return part.second; });
  std::vector<std::vector<std::string>> rows;
  for (const auto& [part, share] : parts)
    if (share > 0) rows.push_back({part, percent(share), span_text(share * f.step_seconds)});
  return html_table({"part", "of a step", "of a median step"}, rows, "Means over the steps that were broken down, rank 0");
}

}  // namespace

std::string time_section(const std::vector<Chart>& charts, const RunHistory& run, const RunFigures& f) {
  if (f.shares.empty()) return "";
  std::string body;
  for (const Chart& chart : charts)
    if (chart.stacked) body += chart_figure(chart, &run);
  return section("breakdown", "Time", body + parts_table(f));
}

std::string step_section(const PageInput& in, const RunFigures& f) {
  if (!in.traced && !in.forecast) return "";
  std::string body;
  if (in.traced)
    body += paragraph(
        fmt::format("Measured: step {} on rank {}, the one of {} that computed longest, {}.{} Drag over a part of it to zoom, and "
                    "double-click to see all.",
                    in.traced->step, in.traced->shown, in.traced->ranks.size(), span_text(in.traced->bars.seconds),
                    in.run.traced.size() > 1 ? fmt::format(" {} steps were traced; this is the last.", in.run.traced.size()) : ""));
  if (in.forecast)
    body += paragraph(fmt::format(
        "Predicted for {}: a step of {}, {} tokens/s, {}{}.", in.forecast->machine, span_text(in.forecast->seconds),
        human_count(in.forecast->tokens_per_second), mfu_text({.full = in.forecast->mfu_full, .causal = in.forecast->mfu_causal}),
        f.step_seconds > 0 ? fmt::format("; the median step took {:.2f} times as long", f.step_seconds / in.forecast->seconds) : ""));
  body +=
      "<figure><div class=\"timeline\"><canvas id=\"timeline\" role=\"img\" aria-label=\"Tasks of a step by lane, measured and "
      "predicted\"></canvas></div><div class=\"legend\" id=\"legend-timeline\"></div><p class=\"help\" id=\"task\">Point at a "
      "task.</p></figure>\n";
  return section("step", "A step, task by task", body);
}

std::string memory_section(const PageInput& in) {
  if (in.memory.empty()) return "";
  std::string body;
  for (const TierUse& tier : in.memory) {
    const double room = static_cast<double>(std::max(tier.limit.value_or(tier.bytes), tier.bytes));
    body += fmt::format("<h3>{} <small>{}{}</small></h3>\n", html(tier.tier), html(bytes_text(tier.bytes)),
                        tier.limit ? html(fmt::format(" of {}, {}", bytes_text(*tier.limit), tier.source)) : "");
    // Parts that live at different times share bytes: then they are shown in proportion.
    double all = 0;
    for (const auto& [name, bytes] : tier.categories) all += static_cast<double>(bytes);
    const double scale = static_cast<double>(tier.bytes) / room / std::max(all, 1.0);
    std::string bar, names;
    for (std::size_t i = 0; i < tier.categories.size(); ++i) {
      const auto& [name, bytes] = tier.categories[i];
      bar += bar_part(name, scale * static_cast<double>(bytes), i % 8);
      names += fmt::format("<li><i class=\"c{}\"></i>{} {}</li>", i % 8, html(name), html(bytes_text(bytes)));
    }
    if (tier.categories.empty()) bar = bar_part(tier.tier, static_cast<double>(tier.bytes) / room, 0);
    body += fmt::format("<div class=\"bar\" role=\"img\" aria-label=\"{} of memory, by use\">{}</div><ul class=\"keys\">{}</ul>\n",
                        html(tier.tier), bar, names);
  }
  body += "<p class=\"help\">As planned; a run takes exactly these bytes. Buffers that are needed at different times share bytes.</p>\n";
  return section("memory", "Memory of a rank", body);
}

std::string goodput_section(const RunFigures& f) {
  if (!f.goodput) return "";
  const Goodput& g = *f.goodput;
  std::string bar;
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < goodput_parts().size(); ++i) {
    const GoodputPart& part = goodput_parts()[i];
    const double seconds = g.*part.seconds;
    if (seconds <= 0) continue;
    bar += bar_part(std::string(part.name), seconds / g.wall, i);
    rows.push_back({std::string(part.name), percent(seconds / g.wall), span_text(seconds), std::string(part.what)});
  }
  std::string body =
      paragraph(fmt::format("{} of {} since the first launch went into steps whose result was kept: {} tokens/s over all of it, {}.",
                            percent(g.share()), span_text(g.wall), human_count(g.tokens_per_second()),
                            mfu_text({.full = g.mfu(), .causal = g.mfu_causal(), .of_peak = f.mfu && f.mfu->of_peak})));
  body += fmt::format("<div class=\"bar\" role=\"img\" aria-label=\"Time of the run by part\">{}</div>\n", bar);
  return section("goodput", "Goodput", body + html_table({"part", "share", "time", "what"}, rows));
}

std::string environment_section(const RunHistory& run) {
  std::vector<std::vector<std::string>> rows;
  const auto start = std::find_if(run.events.rbegin(), run.events.rend(), [](const io::Event& event) { return event.event == "start"; });
  const Json* around = start == run.events.rend() ? nullptr : start->fields.find("environment");
  if (around)
    for (const char* key : {"host", "job", "layout"})
      if (const std::string value = io::field_text(start->fields, key); !value.empty()) rows.push_back({key, value});
  if (around && around->is_object())
    for (const auto& [name, value] : around->items()) rows.push_back({name, text_of(value)});
  else if (!run.starts.empty())
    for (const auto& [name, value] : run.starts.back().facts) rows.push_back({name, value});
  return rows.empty() ? "" : section("environment", "Environment of the last start", html_table({"what", "is"}, rows));
}

std::string unmeasured_section(const PageInput& in, const RunFigures& f, const std::vector<Chart>& charts) {
  std::vector<std::string> list;
  for (const Chart& chart : charts)
    if (chart.series.empty() && !chart.absent.empty()) list.push_back(chart.absent);
  if (!in.traced) list.push_back("Each task of a step, and each rank in it: `run.trace=N` times step N.");
  if (!in.forecast) list.push_back("A prediction with the measured step. " + in.no_forecast);
  if (in.memory.empty()) list.push_back("Memory of a rank. " + in.no_memory);
  if (!f.goodput) list.push_back("Goodput and events: events.jsonl, which records starts and ends, is missing.");
  if (in.run.deck.empty()) list.push_back("The deck: deck.toml is missing.");
  if (list.empty()) return "";
  std::string items;
  for (const std::string& text : list) items += "<li>" + html_words(text) + "</li>\n";
  return "<section id=\"unmeasured\"><details><summary>What this run did not record</summary><ul>\n" + items +
         "</ul></details></section>\n";
}

}  // namespace tessera
