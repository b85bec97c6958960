// What others have published of training on a machine, beside a prediction for it.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/check.hpp"
#include "commands/plan_summary.hpp"
#include "machine/published.hpp"
#include "model/record/flops.hpp"
#include "model/table/parameters.hpp"

namespace tessera {
namespace {

constexpr double like = 1.35;  // times the parameters, or as many times fewer

double parameters_of(const Deck& deck) { return static_cast<double>(parameter_count(parameter_table(deck.model))); }

/// A published run as a deck of ours, as far as its FLOPs go.
Deck deck_of(const PublishedRun& run) {
  PlanOptions o;
  o.path = run.model, o.overrides = run.keys;
  return require_deck(read_deck(with_model(o), o.overrides, 0));
}

struct Reached {
  double low = 0, high = 0;
  void add(double value) { low = low == 0 ? value : std::min(low, value), high = std::max(high, value); }
  std::string text() const { return low == high ? fmt::format("{:.0f}", low) : fmt::format("{:.0f} to {:.0f}", low, high); }
};

}  // namespace

std::string published_line(const Deck& deck, const MachineProfile& machine) {
  const bool codes = deck.precision.fp8 != Fp8Recipe::none;
  const double peak = codes ? machine.fp8.peak : machine.rates(deck.precision.compute).peak;
  std::map<std::string, Reached> programs;
  Reached mfu, mfu_of_all;
  for (const PublishedRun& run : published_runs()) {
    if (!machine.name.starts_with(require_machine(run.machine).name)) continue;
    const Deck other = deck_of(run);
    if ((other.precision.fp8 != Fp8Recipe::none) != codes || other.precision.compute != deck.precision.compute) continue;
    const double share =
        100 * run.tokens_per_second * flops_per_token(other).causal(static_cast<double>(other.batch.sequence_length)) / peak;
    mfu_of_all.add(share);
    const double times = parameters_of(other) / parameters_of(deck);
    if (times > like || times < 1 / like) continue;
    programs[run.program].add(run.tokens_per_second), mfu.add(share);
  }
  if (mfu_of_all.low == 0) return "";
  const std::string type = codes ? "fp8" : std::string(name_of(deck.precision.compute));
  std::string text;
  for (const auto& [program, rate] : programs) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", program, rate.text());
  return text.empty() ? fmt::format("others reach MFU {} % in {} on such GPUs with models of other sizes", mfu_of_all.text(), type)
                      : fmt::format("{} tokens/s a GPU with models of this size in {} on such GPUs; MFU {} %", text, type, mfu.text());
}

}  // namespace tessera
