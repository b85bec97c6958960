#include "report/page/page.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/check.hpp"
#include "base/version.hpp"
#include "report/page/assets.hpp"
#include "report/page/charts.hpp"
#include "report/page/html.hpp"
#include "report/page/sections.hpp"

namespace tessera {
namespace {

Json optional_number(const std::optional<double>& number) { return number ? Json(*number) : Json(); }

/// What stands in charts as an upright line.
Json marks_json(const RunHistory& run) {
  Json marks = Json::array();
  for (const io::Event& event : events_of(run))
    if ((event.event == "start" && event.step > 0) || event.event == "warning" || event.event == "phase" || event.event == "stall")
      if (marks.size() < 500) marks.push_back({{"step", event.step}, {"event", event.event}});
  return marks;
}

Json step_json(const PageInput& in) {
  Json step = Json::object();
  if (in.traced) step["measured"] = in.traced->bars.json();
  if (in.forecast) step["predicted"] = in.forecast->bars.json();
  return step;
}

Json drawn_json(const PageInput& in) {
  const std::vector<Chart> charts = charts_of(in.run);
  Json drawn{{"charts", charts_json(charts)}, {"marks", marks_json(in.run)}, {"step", step_json(in)}};
  drawn["numbers"] = Json::parse(chart_numbers(in.run, charts));
  return drawn;
}

Json figures_json(const PageInput& in, const RunFigures& f) {
  Json out{{"folder", in.run.folder},
           {"name", in.deck ? Json(in.deck->run.name) : Json()},
           {"steps_done", f.steps_done},
           {"ranks", f.ranks},
           {"starts", f.starts},
           {"killed", f.killed},
           {"loss", optional_number(f.loss)},
           {"best_val_loss", optional_number(f.best_validation)},
           {"best_step", f.best_validation ? Json(f.best_step) : Json()},
           {"steps_without_loss", f.without_loss},
           {"step_seconds", f.step_seconds},
           {"tokens_per_second", f.tokens_per_second},
           {"warnings", Json(f.warnings)},
           {"health", in.health},
           {"stall_share", f.stall_share}};
  if (f.mfu) out[f.mfu->of_peak ? "mfu" : "of_product"] = f.mfu->full;
  if (f.mfu) out[f.mfu->of_peak ? "mfu_causal" : "of_product_causal"] = f.mfu->causal;
  Json stalls = Json::array();
  for (const StalledStep& stall : f.stalls) stalls.push_back({{"step", stall.step}, {"seconds", stall.seconds}, {"usual", stall.usual}});
  out["stalls"] = stalls;
  Json shares = Json::object();
  for (const auto& [part, share] : f.shares) shares[part] = share;
  out["shares"] = shares;
  if (f.goodput) out["goodput"] = goodput_json(*f.goodput);
  return out;
}

Json ranks_json(const std::optional<StepTraces>& traced) {
  Json ranks = Json::array();
  if (traced)
    for (const RankTimes& r : traced->ranks) {
      Json kinds = Json::object();
      for (const auto& [kind, seconds] : r.kinds) kinds[kind] = seconds;
      ranks.push_back(
          {{"rank", r.rank}, {"seconds", r.seconds}, {"compute", r.compute}, {"exposed", r.exposed}, {"idle", r.idle}, {"kinds", kinds}});
    }
  return ranks;
}

Json memory_json(const std::vector<TierUse>& memory) {
  Json tiers = Json::object();
  for (const TierUse& tier : memory) {
    Json categories = Json::object();
    for (const auto& [name, bytes] : tier.categories) categories[name] = bytes;
    tiers[tier.tier] = {{"bytes", tier.bytes}, {"limit", tier.limit ? Json(*tier.limit) : Json()}, {"categories", categories}};
  }
  return tiers;
}

}  // namespace

bool can_draw_pages() { return *chart_library != '\0'; }

RunPage::RunPage(PageInput input) : in_(std::move(input)), figures_(figures_of_run(in_.run, in_.traced)) {
  figures_.memory = in_.memory;
  figures_.ranks_per_node = in_.ranks_per_node;
  if (in_.deck) advice_ = advise(figures_, *in_.deck, in_.ask);
}

Json RunPage::data() const {
  Json out{{"run", figures_json(in_, figures_)}};
  out["advice"] = Json::array();
  for (const Advice& a : advice_)
    out["advice"].push_back(
        {{"share", a.share}, {"found", a.found}, {"remedy", a.remedy}, {"change", a.change}, {"simulated", a.simulated}});
  out["memory"] = memory_json(in_.memory);
  out["ranks"] = ranks_json(in_.traced);
  out["traced_step"] = in_.traced ? Json(in_.traced->step) : Json();
  if (in_.forecast)
    out["prediction"] = {{"machine", in_.forecast->machine},
                         {"seconds", in_.forecast->seconds},
                         {"tokens_per_second", in_.forecast->tokens_per_second},
                         {"mfu", in_.forecast->mfu_full},
                         {"mfu_causal", in_.forecast->mfu_causal}};
  out.update(drawn_json(in_));
  return out;
}

std::string title_of_run(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(folder, error).lexically_normal();
  if (error) return folder;
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

std::string html_document(const std::string& title, const std::string& body, const Json& drawn, int reload_seconds) {
  if (!can_draw_pages())
    fail(ExitCode::usage,
         "this build has no library for charts, so it writes no page: install dygraphs 2.2.1 (Debian's libjs-dygraphs, or scripts/setup) "
         "and build again. `tessera runs report RUN --json` prints the page's figures.");
  // Nothing may be fetched, whatever stands in a text.
  std::string text = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"{}>\n<head>\n<meta charset=\"utf-8\">\n<meta http-equiv=\"Content-Security-Policy\" "
      "content=\"default-src 'none'; "
      "script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:\">\n<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"generator\" content=\"tessera "
      "{}\">\n<title>{}</title>\n<style>\n",
      reload_seconds > 0 ? fmt::format(" data-reload=\"{}\"", reload_seconds) : "", version(), tessera::html(title));
  text += page_style;
  text += "</style>\n</head>\n<body>\n<main>\n" + body + licence_section() +
          "</main>\n<noscript><p>Charts need JavaScript; all else on this page does not.</p></noscript>\n<script "
          "type=\"application/json\" id=\"data\">";
  text += script_json(drawn.dump(-1, BadText::replace));
  text += "</script>\n<script>\n";
  text += chart_library;
  text += "\n</script>\n<script>\n";
  text += page_script;
  return text + "</script>\n</body>\n</html>\n";
}

std::string RunPage::html() const {
  const std::vector<Chart> charts = charts_of(in_.run);
  std::string body = head_section(in_, figures_) + advice_section(in_, figures_, advice_) + curves_section(charts, in_.run);
  body += time_section(charts, in_.run, figures_) + rank_times_section(in_.run) + step_section(in_, figures_) +
          ranks_section(in_, figures_) + memory_section(in_) + goodput_section(figures_) + events_section(in_.run) + deck_section(in_) +
          environment_section(in_.run) + unmeasured_section(in_, figures_, charts);
  return html_document(title_of_run(in_.run.folder), body, drawn_json(in_), in_.reload_seconds);
}

}  // namespace tessera
