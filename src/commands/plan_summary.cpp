#include "commands/plan_summary.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "base/mfu.hpp"
#include "machine/shipped.hpp"

namespace tessera {
namespace {

std::string human(std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

/// "1,234,567"
std::string with_commas(double number) {
  std::string digits = fmt::format("{:.0f}", number);
  for (auto at = std::ssize(digits) - 3; at > 0; at -= 3) digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string rank_word(const PlanSummary& s) { return s.deck.run.device == RunDevice::cuda ? "GPU" : "rank"; }

std::string fits_line(const PlanSummary& s) {
  std::vector<std::string> parts;
  bool known = false;
  for (const MemoryKind kind : all_memory_kinds) {
    const std::int64_t needed = bytes_of(s.bytes, kind);
    const auto& limit = s.limits[static_cast<std::size_t>(kind)];
    if (needed == 0 || (kind == MemoryKind::pinned && !limit)) continue;
    known |= limit && kind == kernel_memory(s.deck);
    parts.push_back(!limit                  ? fmt::format("{} {}", name_of(kind), human(needed))
                    : needed > limit->bytes ? fmt::format("{} {} of {}, {} too much: {}", name_of(kind), human(needed), human(limit->bytes),
                                                          human(needed - limit->bytes), limit->source)
                                            : fmt::format("{} {} of {}", name_of(kind), human(needed), human(limit->bytes)));
  }
  return fmt::format("fits      {}: {} on each {}\n",
                     !s.fits ? "no"
                     : known ? "yes"
                             : "unknown without a limit",
                     fmt::join(parts, ", "), rank_word(s));
}

std::string step_line(const PlanSummary& s) {
  if (!s.prediction)
    return fmt::format("step      not predicted: name a machine, for example --machine {} (there are {})\n", shipped_machines().front(),
                       fmt::join(shipped_machines(), ", "));
  const Prediction& p = *s.prediction;
  const double rate = p.tokens_per_second / p.ranks;
  const auto rate_of = [&](double seconds) { return rate * p.step.seconds / seconds; };
  return fmt::format("step      {}{}: {} tokens/s, {} a {}{}; {}{}{}\n", time_text(p.step.seconds),
                     s.band.given() ? fmt::format(" ({} to {})", time_text(s.band.fast), time_text(s.band.slow)) : "",
                     with_commas(p.tokens_per_second), with_commas(rate), rank_word(s),
                     s.band.given() ? fmt::format(" ({} to {})", with_commas(rate_of(s.band.slow)), with_commas(rate_of(s.band.fast))) : "",
                     mfu_text({.full = p.mfu_full, .causal = p.mfu_causal}),
                     s.deck.precision.fp8 == Fp8Recipe::none || s.machine->device == "host" ? "" : " of the fp8 peak",
                     s.fits ? "" : ", if it did fit");
}

std::string cost_line(const PlanSummary& s) {
  if (!s.prediction) return "cost      unknown without a step\n";
  return fmt::format("cost      {}\n", run_cost_text(s.options, *s.machine, s.prediction->ranks, s.prediction->tokens_per_second));
}

}  // namespace

std::string print_summary(const PlanSummary& s) { return fits_line(s) + step_line(s) + cost_line(s); }

double cost_of_billion_tokens(double price, int ranks, double tokens_per_second) {
  return cost_of_run(1e9, tokens_per_second, ranks, price).money;
}

double price_of(const PlanOptions& o, const MachineProfile& machine) { return o.price > 0 ? o.price : machine.price; }

RunCost cost_of_run(double tokens, double tokens_per_second, int ranks, double price) {
  const double seconds = tokens / tokens_per_second, hours = ranks * seconds / 3600;
  return {.days = seconds / 86400, .rank_hours = hours, .money = price * hours};
}

Json run_json(const PlanOptions& o, const MachineProfile& machine, int ranks, double tokens_per_second) {
  const double tokens = read_tokens(o.tokens), price = price_of(o, machine);
  const RunCost cost = cost_of_run(tokens, tokens_per_second, ranks, price);
  Json out = {{"tokens", tokens}, {"days", cost.days}, {"rank_hours", cost.rank_hours}};
  if (price > 0) out["cost"] = cost.money;
  return out;
}

std::string run_cost_text(const PlanOptions& o, const MachineProfile& machine, int ranks, double tokens_per_second) {
  const bool asked = !o.tokens.empty();
  const double tokens = asked ? read_tokens(o.tokens) : 1e9, price = price_of(o, machine);
  const RunCost cost = cost_of_run(tokens, tokens_per_second, ranks, price);
  const char* hours = machine.device == "cuda" ? "GPU-hours" : "rank-hours";
  return fmt::format("{} tokens: {:.{}f} days, {} {}{}{}", human_count(tokens), cost.days, cost.days < 10 ? 2 : 0,
                     with_commas(cost.rank_hours), hours,
                     price > 0 ? fmt::format(", {} at {} each", with_commas(cost.money), price) : "; --price adds the cost",
                     asked ? "" : "; --tokens 15T adds another run");
}

}  // namespace tessera
