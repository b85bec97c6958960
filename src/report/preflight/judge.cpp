#include "report/preflight/judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/json.hpp"
#include "machine/keys.hpp"
#include "topology/devices/binding.hpp"

namespace tessera {
namespace {

const RankMeasure* find(const RankMeasures& rank, const std::string& name) {
  const auto found = std::ranges::find(rank.measures, name, &RankMeasure::name);
  return found == rank.measures.end() ? nullptr : &*found;
}

MeasureRow row_of(const std::vector<RankMeasures>& ranks, const RankMeasure& like) {
  MeasureRow row{.name = like.name, .kind = like.kind, .rates = {}};
  std::vector<double> sorted;
  for (const RankMeasures& rank : ranks) {
    const RankMeasure* measure = find(rank, like.name);
    const bool measured = measure && measure->fault.empty() && measure->rate > 0;
    row.rates.push_back(measured ? std::optional(measure->rate) : std::nullopt);
    if (!measured) continue;
    sorted.push_back(measure->rate);
    if (row.worst < 0 || measure->rate < *row.rates[static_cast<std::size_t>(row.worst)])
      row.worst = static_cast<int>(row.rates.size()) - 1;
  }
  if (sorted.empty()) return row;
  std::ranges::sort(sorted);
  row.median = sorted[sorted.size() / 2];
  row.share = sorted.front() / row.median;
  return row;
}

double least_share(RankMeasureKind kind, const PreflightKeys& keys) {
  if (kind == RankMeasureKind::all) return 0;
  return 1 - (kind == RankMeasureKind::work ? keys.slower : kind == RankMeasureKind::exchange ? keys.slower_exchange : keys.slower_disk);
}

/// Ranks of a host that say the same are one finding.
void add_fault(const std::string& host, int rank, const RankMeasure& measure, std::vector<PreflightFinding>& findings) {
  const std::string what = fmt::format("{}: {}", measure.name, measure.fault);
  for (PreflightFinding& known : findings)
    if (known.what == what && known.where == ranks_on(known.ranks, host)) {
      known.ranks.push_back(rank);
      known.where = ranks_on(known.ranks, host);
      return;
    }
  findings.push_back({.kind = PreflightFinding::Kind::fault, .where = ranks_on({rank}, host), .ranks = {rank}, .what = what});
}

struct Slow {
  double share = 1;
  PreflightFinding finding;
};

void add_slow(const std::vector<RankMeasures>& ranks, const MeasureRow& row, const PreflightKeys& keys, std::vector<Slow>& slow) {
  const RankMeasure like{.name = row.name};
  struct OfHost {
    std::string host;
    std::vector<int> ranks;
    double slowest;
  };
  std::vector<OfHost> hosts;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!row.rates[rank] || *row.rates[rank] >= least_share(row.kind, keys) * row.median) continue;
    auto at = std::ranges::find(hosts, ranks[rank].host, &OfHost::host);
    if (at == hosts.end()) at = hosts.insert(hosts.end(), {ranks[rank].host, {}, *row.rates[rank]});
    at->ranks.push_back(static_cast<int>(rank)), at->slowest = std::min(at->slowest, *row.rates[rank]);
  }
  for (const OfHost& of : hosts) {
    const double share = of.slowest / row.median;
    slow.push_back({share,
                    {.kind = PreflightFinding::Kind::slow,
                     .where = ranks_on(of.ranks, of.host),
                     .ranks = of.ranks,
                     .what = fmt::format("{} at {:.0f} % of the median: {} of {}", row.name, 100 * share, rate_text(like, of.slowest),
                                         rate_text(like, row.median))}});
  }
}

}  // namespace

std::string rate_text(const RankMeasure& like, double rate) {
  return print_quantity(std::stod(fmt::format("{:.3g}", rate)), like.in_flops() ? MachineValue::flops : MachineValue::traffic);
}

std::string ranks_on(const std::vector<int>& ranks, const std::string& host) {
  return fmt::format("rank{} {} on {}", ranks.size() == 1 ? "" : "s", unit_ranges(ranks), host);
}

PreflightJudgement judge(const std::vector<RankMeasures>& ranks, const PreflightKeys& keys) {
  PreflightJudgement judgement;
  std::vector<Slow> slow;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    for (const RankMeasure& measure : ranks[rank].measures) {
      if (!measure.fault.empty()) add_fault(ranks[rank].host, static_cast<int>(rank), measure, judgement.findings);
      if (std::ranges::find(judgement.rows, measure.name, &MeasureRow::name) != judgement.rows.end()) continue;
      judgement.rows.push_back(row_of(ranks, measure));
      add_slow(ranks, judgement.rows.back(), keys, slow);
    }
  std::ranges::stable_sort(slow, std::less{}, &Slow::share);
  for (Slow& s : slow) judgement.findings.push_back(std::move(s.finding));
  return judgement;
}

RankMeasures faster_of(RankMeasures first, const RankMeasures& second) {
  for (const RankMeasure& again : second.measures) {
    const auto known = std::ranges::find(first.measures, again.name, &RankMeasure::name);
    if (known == first.measures.end()) {
      first.measures.push_back(again);
      continue;
    }
    known->rate = std::max(known->rate, again.rate);
    if (known->fault.empty()) known->fault = again.fault;
  }
  return first;
}

std::string pack(const RankMeasures& rank) {
  Json out = {{"host", rank.host}, {"measures", Json::array()}};
  for (const RankMeasure& m : rank.measures) out["measures"].push_back({m.name, static_cast<int>(m.kind), m.rate, m.fault});
  return out.dump(-1, BadText::replace);
}

RankMeasures unpack_measures(const std::string& text) {
  const Json in = Json::parse(text);
  RankMeasures rank{in["host"], {}};
  for (const Json& m : in["measures"]) rank.measures.push_back({m[0], static_cast<RankMeasureKind>(m[1].get<int>()), m[2], m[3]});
  return rank;
}

}  // namespace tessera
