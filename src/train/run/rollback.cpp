#include "train/run/rollback.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.hpp"
#include "deck/ramp.hpp"
#include "io/checkpoint/format.hpp"
#include "train/folder/start_point.hpp"
#include "train/folder/way_back.hpp"
#include "train/save/saving.hpp"

namespace tessera {

void Rollback::take_lineage(const RunClaim* claim) {
  lineage_ = io::parse_lineage(world_.broadcast_text(claim ? io::lineage_text(claim->lineage()) : ""), "the lines of rank 0");
}

bool Rollback::leaves_out_after(std::int64_t step, Engine& engine) const {
  const std::int64_t samples = left_out_by(left_out(), step) - engine.run_values().samples_left_out;
  return !left_out().empty() && (samples > 0 || left_out().back().after >= step);
}

std::int64_t Rollback::go_back(StartPoint& start, Engine& engine, const std::function<std::int64_t()>& restore) {
  const std::int64_t step = going_back.step, taken = engine.run_values().samples_left_out;
  const bool of_data = going_back.leaves_data_out;
  io::WayBack way = lineage_.back().way;
  io::Ways& ways = of_data ? way.spikes : way.faults;
  count_way(ways, step, deck_.checkpoint.every);
  const std::int64_t target = of_data ? step_to_go_back_to(deck_.checkpoint, lineage_.front().from_step, step, ways) : step;
  std::vector<std::string> places = candidates(start.folder, ways, target);
  std::int64_t first = 0;
  do {
    start.checkpoint = choose_verified(world_, "the run, which rolls back by itself,", places);
    first = restore();
  } while (is_damaged(start.checkpoint, first, engine, places));
  const std::int64_t at = std::max(first, target);
  std::vector<io::LeftOut> more;
  if (of_data) more.push_back({.after = at, .samples = taken + samples_in(deck_, step) - samples_in(deck_, at)});
  way.left_out = left_out_from(left_out_along(lineage_), first, at, more);
  going_back.why += describe(first, target, engine.run_values().samples_left_out, way.left_out);
  way_ = std::move(way);
  return first;
}

void Rollback::record(const StartPoint& start, RunClaim* claim) {
  world_.together([&] {
    if (world_.rank() != 0) return;
    warning("{}", going_back.why);
    claim->go_back(start.checkpoint, going_back.why, way_);
  });
  take_lineage(claim);
}

std::vector<std::string> Rollback::candidates(const RunFolder& folder, const io::Ways& ways, std::int64_t target) const {
  std::vector<std::string> places;
  world_.together([&] {
    if (ways.times > deck_.guards.rollback_limit)
      fail(ExitCode::numerics,
           "{}. The run has rolled back {} times without saving a checkpoint beyond that step (guards.rollback_limit). The cause is in its "
           "data, its keys or this machine. Look at the steps before, and start another run from an earlier checkpoint with other keys: "
           "run.output_dir=NEW run.resume={}/step-N",
           going_back.why, ways.times - 1, folder.checkpoints());
    if (world_.rank() != 0) return;
    places = going_back.leaves_data_out ? checkpoints_for(folder.checkpoints(), lineage_, target, going_back.step, deck_.checkpoint.every)
                                        : checkpoints_before(folder.checkpoints(), lineage_, going_back.step, ways.times - 1);
  });
  return places;
}

std::string Rollback::describe(std::int64_t step, std::int64_t target, std::int64_t taken, const std::vector<io::LeftOut>& left_out) const {
  const std::string back = fmt::format("; the run rolled back to step {}", step);
  if (!going_back.leaves_data_out) return back;
  const std::int64_t samples = left_out.back().samples - taken;
  if (step == target) return fmt::format("{}, and leaves out the {} samples of the steps since", back, samples);
  const std::string missing = fmt::format("{}, because no checkpoint of step {} can be read", back, target);
  if (step < target)
    return fmt::format("{}. It repeats the steps up to {}, and then leaves out the samples of the steps since", missing, target);
  return fmt::format(
      "{}, nor one from shortly before, and leaves out the {} samples of the steps since. A run that kept that checkpoint has other "
      "numbers from here on (checkpoint.keep)",
      missing, samples);
}

bool Rollback::is_damaged(const std::string& checkpoint, std::int64_t step, Engine& engine, std::vector<std::string>& places) {
  if (checkpoint.empty() || deck_.guards.digest_every == 0) return false;
  if (world_.sum(std::int64_t{agreed.differ(step, engine.digest_copies())}) == 0) return false;
  world_.together([&] {
    if (world_.rank() != 0) return;
    warning("{} holds state that no task wrote: memory changed after step {} and before it was saved. It is skipped", checkpoint, step);
    places.erase(places.begin(), std::next(std::ranges::find(places, checkpoint)));
    if (places.empty())
      fail(ExitCode::checkpoint,
           "{}, and no checkpoint before {} is left to return to. Resume from one of another run by run.resume=PATH run.output_dir=NEW, "
           "and keep more of them (checkpoint.keep)",
           going_back.why, checkpoint);
  });
  return true;
}

}  // namespace tessera
