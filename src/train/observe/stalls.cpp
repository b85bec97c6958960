#include "train/observe/stalls.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/clock.hpp"
#include "train/observe/ledger.hpp"
#include "train/observe/run_notices.hpp"

namespace tessera {

std::string describe_stall(std::int64_t step, const Stall& stall, double data_seconds, int ranks, const AwaitedRanks& awaited) {
  const auto why = [&]() -> std::string {
    if (data_seconds > stall.excess() / 2)
      return fmt::format("reading its batch took {:.3g} s on rank 0; look at the disk that holds data.train", data_seconds);
    if (!awaited.ranks.empty())
      return fmt::format("during {:.3g} s of it {} {}; look for what stopped there: suspended processes, swap, clocks, the file system",
                         awaited.seconds, awaited.stopped ? "no thread ran on" : "the others waited for", awaited.names);
    if (ranks == 1) return "look for what stopped this process: a suspended job, swap, clocks, the file system";
    return "all ranks waited in the same collective, or no rank was seen to be slow; look at the network and the nodes' logs";
  };
  return fmt::format("step {} took {:.3g} s, {:.0f} times the median of the steps before it ({:.3g} s): {}", step, stall.seconds,
                     stall.seconds / stall.usual, stall.usual, why());
}

void Stalls::measure(StepEnd& end) {
  if (!std::exchange(first_, false)) end.stall = pace_.after(end.figures.seconds, run_.engine.waited_for_copies());
}

void Stalls::phase_ends() { pace_.forget(), first_ = true; }

Verdict Stalls::after(const StepEnd& end) {
  if (run_.world.rank() != 0) return Verdict::go_on;
  run_.notices.look();
  if (!end.stall) return Verdict::go_on;
  const AwaitedRanks awaited = run_.world.awaited_since(now_seconds() - end.stall->seconds);
  const std::string text = describe_stall(end.done, *end.stall, end.data_seconds, run_.world.ranks(), awaited);
  progress_.warn(text);
  const Json fields{{"text", text}, {"seconds", end.stall->seconds}, {"usual", end.stall->usual}, {"ranks", Json(awaited.ranks)}};
  run_.ledger.stalled(end.done, fields);
  run_.notices.tell("stall", end.done, fields);
  return Verdict::go_on;
}

}  // namespace tessera
