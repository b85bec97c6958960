#include "report/preflight/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/json.hpp"

namespace tessera {
namespace {

using Kind = PreflightFinding::Kind;

/// Differences are findings where the deck says so; else they are told, and nothing is wrong.
std::vector<PreflightFinding> all_findings(const PreflightVerdict& v) {
  std::vector<PreflightFinding> all = v.judgement.findings;
  // What is broken before what is slow, which may follow from it.
  std::ranges::stable_sort(all, {}, &PreflightFinding::kind);
  if (v.differences_count)
    for (const NodeDifference& d : v.differences) {
      const std::string text = sentence(d);
      const std::size_t colon = text.find(": ");
      all.push_back({.kind = Kind::difference, .where = text.substr(0, colon), .what = text.substr(colon + 2)});
    }
  return all;
}

const char* word_of_finding(Kind kind) {
  return kind == Kind::fault ? "fault" : kind == Kind::health ? "health" : kind == Kind::slow ? "slow" : "difference";
}

std::string worst_text(const PreflightVerdict& v, const MeasureRow& row) {
  return row.worst < 0 ? "" : ranks_on({row.worst}, v.hosts[static_cast<std::size_t>(row.worst)]);
}

std::string table(const PreflightVerdict& v) {
  std::size_t name = 7, worst = 10;
  for (const MeasureRow& row : v.judgement.rows) name = std::max(name, row.name.size()), worst = std::max(worst, worst_text(v, row).size());
  std::string text = fmt::format("{:{}}  {:>14}  {:{}}  of the median\n", "measure", name, "median", "worst rank", worst);
  for (const MeasureRow& row : v.judgement.rows) {
    const std::string median = row.worst < 0 ? "none" : rate_text({.name = row.name}, row.median);
    text += fmt::format("{:{}}  {:>14}  {:{}}  {:>11}\n", row.name, name, median, worst_text(v, row), worst,
                        row.worst < 0 ? "" : fmt::format("{:.0f} %", 100 * row.share));
  }
  return text;
}

}  // namespace

int status_of(const PreflightVerdict& v) {
  const std::vector<PreflightFinding> all = all_findings(v);
  if (all.empty()) return static_cast<int>(ExitCode::ok);
  return static_cast<int>(all.front().kind == Kind::fault ? ExitCode::storage : ExitCode::environment);
}

std::string headline(const PreflightVerdict& v) {
  const std::vector<PreflightFinding> all = all_findings(v);
  if (all.empty()) return "";
  return fmt::format("{}: {}{}", all.front().where, all.front().what,
                     all.size() == 1 ? "" : fmt::format("; and {} more that the table names", all.size() - 1));
}

std::string print_verdict(const PreflightVerdict& v) {
  std::string text;
  const std::vector<PreflightFinding> all = all_findings(v);
  for (const PreflightFinding& f : all) text += fmt::format("{}: {}\n", f.where, f.what);
  if (all.empty()) text = "no fault was found\n";
  text += fmt::format("\nranks {}\n\n{}\n", v.map, table(v));
  if (v.nodes == 1) return text + "one node: there is none to compare it with\n";
  if (v.differences.empty()) return text + fmt::format("the {} nodes are alike\n", v.nodes);
  text += "nodes that differ\n";
  for (const NodeDifference& d : v.differences) text += fmt::format("  {}\n", sentence(d));
  return text;
}

std::string verdict_json(const PreflightVerdict& v) {
  Json out = {{"status", status_of(v)},    {"ranks", v.map},         {"seconds", v.seconds}, {"found", Json::array()},
              {"measures", Json::array()}, {"nodes", Json::object()}};
  for (const PreflightFinding& f : all_findings(v))
    out["found"].push_back({{"kind", word_of_finding(f.kind)}, {"where", f.where}, {"ranks", f.ranks}, {"what", f.what}});
  for (const MeasureRow& row : v.judgement.rows) {
    Json rates = Json::array();
    for (const std::optional<double>& rate : row.rates) rates.push_back(rate ? Json(*rate) : Json());
    out["measures"].push_back({{"name", row.name},
                               {"unit", RankMeasure{.name = row.name}.in_flops() ? "FLOP/s" : "B/s"},
                               {"median", row.median},
                               {"worst", row.worst < 0 ? Json() : Json(row.worst)},
                               {"host", row.worst < 0 ? Json() : Json(v.hosts[static_cast<std::size_t>(row.worst)])},
                               {"share", row.share},
                               {"rates", rates}});
  }
  out["nodes"]["count"] = v.nodes;
  out["nodes"]["differ"] = differences_json(v.differences);
  return out.dump(2, BadText::replace);
}

}  // namespace tessera
