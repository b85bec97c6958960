#include "train/saving.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "base/clock.hpp"
#include "base/end_report.hpp"
#include "base/log.hpp"
#include "base/version.hpp"
#include "io/checkpoint/survey.hpp"
#include "train/program_identity.hpp"

namespace tessera {

namespace {

std::int64_t bytes_of(const io::CheckpointLayout& layout) {
  std::int64_t bytes = 0;
  for (const auto& unit : layout.units) bytes += unit.elements * 4 * static_cast<std::int64_t>(layout.groups.size());
  return bytes;
}

}  // namespace

Saver::Saver(const World& world, Engine& engine, const Deck& deck, std::string root, RunClaim* claim, std::string last)
    : world_(world), engine_(engine), deck_(deck), root_(std::move(root)), claim_(claim), last_(std::move(last)) {}

void Saver::write(std::int64_t step) {
  const io::CheckpointLayout layout = engine_.state().checkpoint_layout();
  world_.together([&] {
    if (!claim_) return;
    claim_->renew();
    io::begin_checkpoint(root_, step);
  });
  world_.together([&] { io::write_shard(root_, step, layout, world_.rank(), engine_.state().checkpoint_slices()); });
  world_.together([&] {
    if (!claim_) return;
    io::write_index(root_, layout,
                    {.step = step,
                     .sample_cursor = step * deck_.batch.global,
                     .seed = static_cast<std::uint64_t>(deck_.run.seed),
                     .deck = print_deck(deck_),
                     .identity = deck_identity(deck_).hex(),
                     .version = version(),
                     .program = describe(program_identity()),
                     .lineage = claim_->lineage()});
    io::commit_checkpoint(root_, step, {.newest = deck_.checkpoint.keep, .every = deck_.checkpoint.keep_every});
  });
}

std::string Saver::save(std::int64_t step) {
  const double begin = now_seconds();
  engine_.settle();
  for (bool again = false;; again = true) try {
      write(step);
      break;
    } catch (const AgreedError& error) {
      const bool gone = claim_ && !claim_->stands();
      if (!world_.broadcast_text(gone ? "gone" : "").empty() && !again) continue;
      if (claim_) io::discard_checkpoint(root_, step);
      throw AgreedError(error.code,
                        fmt::format("{}\nThe checkpoint of step {} was not written; {}. Training stops here.", error.what(), step,
                                    last_.empty() ? "there is none before it" : fmt::format("the one before it is intact: {}", last_)),
                        error.speaker);
    }
  note_saved(step);
  last_ = fmt::format("{}/{}", root_, io::checkpoint_name(step));
  const double seconds = now_seconds() - begin;
  return fmt::format("saved {} ({} in {:.2f} s)", last_, human_bytes(static_cast<double>(bytes_of(engine_.state().checkpoint_layout()))),
                     seconds);
}

std::int64_t disk_bytes_needed(const Deck& deck, std::int64_t first_step, std::int64_t own, std::int64_t checkpoint_bytes) {
  const std::int64_t steps = std::max<std::int64_t>(deck.run.steps - first_step, 0), keep = deck.checkpoint.keep;
  const std::int64_t saves = deck.checkpoint.every > 0 ? ceil_div(steps, deck.checkpoint.every) : std::min<std::int64_t>(steps, 1);
  // Those that stay for ever are such steps that are saved, all but the newest of them beside those that come and go.
  const std::int64_t milestones =
      deck.checkpoint.keep_every > 0 && deck.checkpoint.every > 0 ? steps / std::lcm(deck.checkpoint.keep_every, deck.checkpoint.every) : 0;
  const std::int64_t at_once = keep == 0 ? saves : std::min(saves, std::max<std::int64_t>(keep + 1 - own, 1) + milestones);
  return at_once * checkpoint_bytes;
}

void foresee_full_disk(const Engine& engine, const Deck& deck, std::int64_t first_step, const std::string& root,
                       const io::Lineage& lineage) {
  std::int64_t own = 0;
  for (const io::CheckpointEntry& entry : io::survey_checkpoints(root).entries)
    own += entry.fault.empty() && entry.line() == lineage.back().number;
  const std::int64_t needed = disk_bytes_needed(deck, first_step, own, bytes_of(engine.state().checkpoint_layout()));
  struct statvfs s;
  if (statvfs(root.c_str(), &s) != 0) return;  // only a forecast: a disk that is full says so at the save
  const double room = static_cast<double>(s.f_bavail) * static_cast<double>(s.f_frsize);
  if (room >= static_cast<double>(needed)) return;
  warning(
      "{}: the saves of this run need {} at once ({} each; checkpoint.keep = {}, and one more while it is written), and the file system "
      "has {} free. Make room, lower checkpoint.keep or choose another run.output_dir; a save that finds the disk full ends the run.",
      root, human_bytes(static_cast<double>(needed)), human_bytes(static_cast<double>(bytes_of(engine.state().checkpoint_layout()))),
      deck.checkpoint.keep, human_bytes(room));
}

std::string choose_verified(const World& world, const std::vector<std::string>& candidates) {
  const std::string all = world.broadcast_text(fmt::format("{}", fmt::join(candidates, "\n")));
  std::istringstream lines(all);
  for (std::string candidate; std::getline(lines, candidate);) try {
      world.together([&] { io::CheckpointReader(candidate).verify({}, world.rank(), world.ranks()); });
      info("run.resume = newest-good goes on from {}, which verified", candidate);
      return candidate;
    } catch (const AgreedError& error) {
      if (error.code != ExitCode::checkpoint) throw;
      if (world.rank() == 0) warning("run.resume = newest-good skipped {}: {}", candidate, error.what());
    }
  if (all.empty()) return "";
  world.together([] {
    fail(ExitCode::checkpoint,
         "run.resume = newest-good: none of the run's checkpoints verifies. Name one of another run by run.resume=PATH, or begin anew with "
         "run.resume=never run.overwrite=true.");
  });
  return "";
}

void load_checkpoint(const World& world, Engine& engine, const std::string& path) {
  std::optional<io::CheckpointReader> reader;
  world.together([&] { reader.emplace(path); });
  if (has_weights_alone(*reader)) info("{} holds weights alone, as `tessera import` makes it: the optimizer's moments begin at zero", path);
  world.together([&] { engine.read_state(*reader); });
  engine.publish();
}

}  // namespace tessera
