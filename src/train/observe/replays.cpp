#include "train/observe/replays.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

namespace tessera {

void Replays::before(std::int64_t done) {
  if (!due(done + 1)) return;
  run_.position.turn_to("the step's first computation");
  first_ = run_.engine.step({.rehearsal = true, .counts = run_.feed.counts()});
  own_ = run_.engine.own_sums();
}

Verdict Replays::after(const StepEnd& end) {
  if (!due(end.done)) return Verdict::go_on;
  const StepReport& again = end.report;
  // The sums leave out what is not finite, so they are numbers.
  // A step whose gradients overflow under the scale of the loss moves nothing, and says no norm.
  const bool same_norm = first_.grad_norm == again.grad_norm || again.skipped != 0;
  if (first_.loss_sum == again.loss_sum && same_norm) return Verdict::go_on;
  const Engine::OwnSums own = run_.engine.own_sums();
  const auto differs = [](const kernels::FixedSum& a, const kernels::FixedSum& b) { return std::memcmp(&a, &b, sizeof a) != 0; };
  const bool loss = differs(own_.loss, own.loss), norm = differs(own_.squares, own.squares);
  std::vector<std::string> ranks;
  for (const std::string& rank : run_.world.gather_text(
           loss || norm ? fmt::format("the {} of rank {} on {}", loss ? "loss" : "gradient", run_.world.rank(), run_.world.place().host)
                        : ""))
    if (!rank.empty()) ranks.push_back(rank);
  run_.going_back = {
      .step = end.done,
      .why = fmt::format("step {}: its two computations gave a loss of {} and {}, and a gradient norm of {} and {}: {} differed", end.done,
                         first_.loss, again.loss, first_.grad_norm, again.grad_norm, fmt::join(ranks, ", "))};
  return Verdict::roll_back;
}

}  // namespace tessera
