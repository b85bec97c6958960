#include "train/observe/copies_watch.hpp"

#include <fmt/format.h>

#include <utility>

#include "train/observe/ledger.hpp"

namespace tessera {
namespace {

/// The rank whose copy is wrong, as far as copies tell.
std::string describe(const DifferentCopies& copies, const std::vector<std::string>& hosts) {
  const int other = copies.ranks[1].front();
  const std::string& host = hosts[static_cast<std::size_t>(other)];
  if (copies.ranks[0].size() > copies.ranks[1].size())
    return fmt::format("{}: the copy of rank {} on {} differs from the other copies", copies.what, other, host);
  return fmt::format(
      "{}: the copies of ranks {} and {} (on {}) differ, each with equally many ranks; repeating the step will show which one is wrong",
      copies.what, copies.ranks[0].front(), other, host);
}

}  // namespace

CopiesWatch::CopiesWatch(const RunParts& run, const Saver& saver, ProgressLog& progress)
    : run_(run),
      saver_(saver),
      progress_(progress),
      suspected_step_(run.going_back.step),
      suspected_(std::exchange(run.going_back.copies, {})) {
  if (run.deck.guards.digest_every == 0) return;
  const auto copies = std::ssize(run.engine.digest_copies());
  if (run.world.sum(copies) == 0)
    progress_.note("guards.digest_every: no two ranks of this layout keep a copy of the same, so none is compared");
}

Verdict CopiesWatch::after(const StepEnd& end) {
  const std::int64_t every = run_.deck.guards.digest_every;
  if (every == 0 || (end.done % every != 0 && !saver_.may_be_due(end.done, end.last))) return Verdict::go_on;
  run_.position.turn_to("the comparison of copies");
  std::vector<CopyDigest> mine = run_.engine.digest_copies();
  const std::vector<DifferentCopies> differing = compare_copies(run_.world, mine);
  if (differing.empty()) {
    run_.agreed.note(end.done, mine);
    if (end.done == suspected_step_) say_who_was_wrong(end.done, mine);
    return Verdict::go_on;
  }
  run_.going_back = {.step = end.done,
                     .why = fmt::format("step {}: memory of a rank has changed that no task writes: {}", end.done,
                                        describe(differing.front(), run_.world.gather_text(run_.world.place().host))),
                     .copies = std::move(mine)};
  return Verdict::roll_back;
}

void CopiesWatch::say_who_was_wrong(std::int64_t step, const std::vector<CopyDigest>& right) {
  std::string wrong;
  for (std::size_t i = 0; i < std::min(right.size(), suspected_.size()); ++i)
    if (right[i].what == suspected_[i].what && !(right[i].digest == suspected_[i].digest) && wrong.empty())
      wrong = fmt::format("{} of rank {} on {}", right[i].what, run_.world.rank(), run_.world.place().host);
  suspected_.clear();
  for (const std::string& of_rank : run_.world.gather_text(wrong)) {
    if (of_rank.empty() || run_.world.rank() != 0) continue;
    const std::string line = fmt::format("step {} was repeated, and the wrong copy before it was: {}", step, of_rank);
    progress_.warn(line);
    run_.ledger.warned(step, line);
  }
}

}  // namespace tessera
