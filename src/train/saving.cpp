#include "train/saving.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/clock.hpp"
#include "base/end_report.hpp"
#include "base/log.hpp"
#include "base/version.hpp"
#include "io/checkpoint/format.hpp"
#include "io/checkpoint/survey.hpp"
#include "train/program_identity.hpp"

namespace tessera {

namespace {

std::int64_t bytes_of(const io::CheckpointLayout& layout) {
  std::int64_t bytes = 0;
  for (const auto& unit : layout.units) bytes += unit.elements * 4 * static_cast<std::int64_t>(layout.groups.size());
  return bytes;
}

/// The file of each rank by checkpoint.files, numbered in order of the files' first ranks; empty where none is shared.
std::vector<int> files_of_ranks(const World& world, const std::string& wish) {
  std::vector<int> files;
  if (wish == "rank") return files;
  if (wish == "node") {
    for (const std::string& node : world.gather_text(std::to_string(world.place().node))) files.push_back(std::stoi(node));
  } else {
    const std::int64_t count = std::min<std::int64_t>(std::stoll(wish), world.ranks());
    for (std::int64_t rank = 0; rank < world.ranks(); ++rank) files.push_back(static_cast<int>(rank * count / world.ranks()));
  }
  if (std::ranges::max(files) + 1 == world.ranks()) files.clear();
  return files;
}

/// The node's disk must have room for what its ranks save at once.
void foresee_full_staging(const World& world, const Engine& engine, const std::string& folder) {
  const io::CheckpointLayout layout = engine.state().checkpoint_layout();
  std::int64_t mine = 0;
  for (const io::UnitSlice& slice : io::slices_of(layout, world.rank())) mine += slice.end - slice.begin;
  const double needed = static_cast<double>(mine) * 4 * static_cast<double>(layout.groups.size()) * world.place().local_ranks;
  struct statvfs s;
  if (world.place().local_rank != 0 || statvfs(folder.c_str(), &s) != 0) return;
  const double room = static_cast<double>(s.f_bavail) * static_cast<double>(s.f_frsize);
  if (room < needed)
    warning(
        "{} (checkpoint.staging) on {}: a save needs about {} there, and {} are free. Saves that find it full go straight to the run's "
        "folder "
        "while the steps wait.",
        folder, world.place().host, human_bytes(needed), human_bytes(room));
}

}  // namespace

Saver::Saver(const World& world, Engine& engine, const Deck& deck, std::string root, RunClaim* claim, std::string last,
             std::function<void(const Saved&)> note)
    : world_(world), engine_(engine), deck_(deck), root_(std::move(root)), claim_(claim), last_(std::move(last)), note_(std::move(note)) {
  files_ = files_of_ranks(world_, deck_.checkpoint.files);
  if (deck_.checkpoint.staging.empty()) return;
  world_.together([&] { staging_.emplace(deck_.checkpoint.staging, root_, world_.rank()); });
  foresee_full_staging(world_, engine_, staging_->folder());
}

void Saver::save(std::int64_t step, bool last_of_run) {
  complete();
  step_ = step, last_of_run_ = last_of_run, begin_ = now_seconds(), stalled_ = 0, again_ = due_ = false;
  engine_.settle();
  if (deck_.checkpoint.async) engine_.take_snapshot();
  layout_ = engine_.state().checkpoint_layout(), layout_.files = files_;
  start();
  stalled_ = now_seconds() - begin_;
  if (!beside_steps() || last_of_run) complete();
}

void Saver::look() {
  if (part_ == Part::none) return;
  const bool done = work_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if (world_.sum(done ? 0 : 1) == 0) go_on();
}

void Saver::finish() { complete(); }

void Saver::complete() {
  const double begin = now_seconds(), before = stalled_;
  while (part_ != Part::none) {
    work_.wait();
    stalled_ = before + now_seconds() - begin;
    go_on();
  }
}

void Saver::start() {
  staged_ = staging_ && !std::exchange(direct_, false);
  attempt([&] {
    world_.together([&] {
      if (!claim_) return;
      claim_->renew();
      io::begin_checkpoint(root_, step_);
    });
    auto slices = engine_.state().checkpoint_slices();
    if (!staged_) return begin(Part::shards, [this, slices] { io::write_shard(root_, step_, layout_, world_.rank(), slices); });
    part_ = Part::staging;
    world_.together([&] { staging_->write(step_, layout_, world_.rank(), slices); });
    begin(Part::shards, [this] { staging_->drain(root_, step_, layout_, world_.rank()); });
  });
}

void Saver::begin(Part part, std::function<void()> work) {
  part_ = part;
  // Deferred work is done by whoever asks for its end.
  work_ = std::async(beside_steps() ? std::launch::async : std::launch::deferred, std::move(work));
}

void Saver::go_on() {
  attempt([&] {
    world_.together([&] { work_.get(); });
    if (part_ == Part::index) return saved();
    if (part_ == Part::shards && !layout_.files.empty()) return begin(Part::seals, [this] { seal_files(); });
    begin(Part::index, [this] { write_index(); });
  });
}

void Saver::seal_files() {
  const int file = io::file_of(layout_, world_.rank());
  if (io::shards_in(layout_, file).front() == world_.rank()) io::seal_file(root_, step_, layout_, file);
}

void Saver::write_index() {
  if (!claim_) return;
  io::write_index(root_, layout_,
                  {.step = step_,
                   .sample_cursor = step_ * deck_.batch.global,
                   .seed = static_cast<std::uint64_t>(deck_.run.seed),
                   .deck = print_deck(deck_),
                   .identity = deck_identity(deck_).hex(),
                   .version = version(),
                   .program = describe(program_identity()),
                   .lineage = claim_->lineage()});
  io::commit_checkpoint(root_, step_, {.newest = deck_.checkpoint.keep, .every = deck_.checkpoint.keep_every});
}

void Saver::attempt(const std::function<void()>& piece) {
  try {
    piece();
  } catch (const AgreedError& error) {
    const Part part = std::exchange(part_, Part::none);
    const bool gone = claim_ && !claim_->stands();
    if (!world_.broadcast_text(gone ? "gone" : "").empty() && !std::exchange(again_, true)) return start();
    direct_ = staged_;
    if (!staged_ || (part != Part::staging && !last_of_run_)) return failed(error);
    if (world_.rank() == 0) warning("{} The save of step {} goes straight to {}, and the steps wait for it.", error.what(), step_, root_);
    start();
  }
}

void Saver::failed(const AgreedError& error) {
  if (claim_) io::discard_checkpoint(root_, step_);
  const std::string what = fmt::format("{}\nThe checkpoint of step {} was not written; {}.", error.what(), step_,
                                       last_.empty() ? "there is none before it" : fmt::format("the one before it is intact: {}", last_));
  const std::int64_t retries = deck_.checkpoint.retries;
  if (error.code != ExitCode::storage || last_of_run_ || failures_ == retries)
    throw AgreedError(error.code, what + " Training stops here.", error.speaker);
  ++failures_, due_ = true;
  if (world_.rank() == 0) warning("{} It is tried again after the next step: {} of {} (checkpoint.retries).", what, failures_, retries);
}

void Saver::saved() {
  part_ = Part::none, failures_ = 0;
  note_saved(step_);
  last_ = fmt::format("{}/{}", root_, io::checkpoint_name(step_));
  const double seconds = now_seconds() - begin_;
  const std::string bytes = human_bytes(static_cast<double>(bytes_of(layout_)));
  if (beside_steps())
    note_({step_, fmt::format("saved {} ({} in {:.2f} s beside the steps, which waited {:.3f} s)", last_, bytes, seconds, stalled_),
           seconds, stalled_});
  else
    note_({step_, fmt::format("saved {} ({} in {:.2f} s)", last_, bytes, seconds), seconds, seconds});
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
