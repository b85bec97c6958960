#include "train/save/saving.hpp"
#include "train/engine/same_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <utility>

#include "base/clock.hpp"
#include "base/end_report.hpp"
#include "base/log.hpp"
#include "base/version.hpp"
#include "io/checkpoint/format.hpp"
#include "io/checkpoint/survey.hpp"
#include "optimizer/state.hpp"
#include "topology/failure/signals.hpp"
#include "train/engine/program_identity.hpp"
#include "train/save/save_room.hpp"

namespace tessera {

namespace {

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

}  // namespace

std::vector<io::ShardSlice> slices_in(const io::CheckpointLayout& layout, int shard, std::vector<io::ShardSlice> slices) {
  const std::vector<io::UnitSlice> held = io::slices_of(layout, shard);
  std::erase_if(slices,
                [&](const io::ShardSlice& slice) { return std::ranges::find(held, slice.unit, &io::UnitSlice::unit) == held.end(); });
  return slices;
}

io::CheckpointMeta meta_of_save(const Deck& deck, const io::Lineage& lineage, const std::vector<io::CheckpointData>& data) {
  return {.seed = static_cast<std::uint64_t>(deck.run.seed),
          .deck = print_deck(deck),
          .identity = deck_identity(deck).hex(),
          .version = version(),
          .program = describe(program_identity()),
          .lineage = lineage,
          .values = {},
          .data = data};
}

Saver::Saver(const World& world, Engine& engine, const Deck& deck, const RunFolder& folder, RunClaim* claim, std::string last,
             std::vector<io::CheckpointData> data, std::function<void(const Saved&)> note)
    : world_(world),
      engine_(engine),
      deck_(deck),
      root_(folder.checkpoints()),
      weights_root_(folder.weights()),
      claim_(claim),
      last_(std::move(last)),
      data_(std::move(data)),
      note_(std::move(note)) {
  files_ = files_of_ranks(world_, deck_.checkpoint.files);
  if (deck_.checkpoint.staging.empty()) return;
  world_.together([&] { staging_.emplace(deck_.checkpoint.staging, root_, world_.rank()); });
  // All ranks have theirs now: what else of this run is there on the node is left by ranks that were killed.
  if (world_.place().local_rank == 0) io::remove_left_staging(deck_.checkpoint.staging, root_);
  foresee_full_staging(world_, engine_, staging_->folder());
}

std::vector<SaveOf> Saver::due(std::int64_t step, bool last_of_run, bool state_too) const {
  auto wanted = [&](SaveOf what, std::int64_t every) {
    return (every > 0 && step % every == 0) || std::ranges::find(failed_, what) != failed_.end();
  };
  std::vector<SaveOf> due;
  if (last_of_run || (state_too && (is_best(step) || wanted(SaveOf::state, deck_.checkpoint.every)))) due.push_back(SaveOf::state);
  if (wanted(SaveOf::weights, deck_.checkpoint.weights_every)) due.push_back(SaveOf::weights);
  return due;
}

bool Saver::is_best(std::int64_t step) const { return deck_.checkpoint.keep_best && engine_.evaluations().best_step == step; }

bool Saver::may_be_due(std::int64_t step, bool last_of_run) const {
  return !due(step, last_of_run, true).empty() || (deck_.checkpoint.keep_best && deck_.evaluate.due(step, deck_.run.steps));
}

void Saver::save(std::int64_t step, bool last_of_run, const std::vector<SaveOf>& what) {
  complete();
  step_ = step, last_of_run_ = last_of_run, queue_ = what;
  // The state is that of now, also where it is copied with the next step.
  values_ = engine_.saved_run_values(), sample_cursor_ = engine_.run_values().sample_cursor;
  std::erase_if(failed_, [&](SaveOf again) { return std::ranges::find(what, again) != what.end(); });
  asked_ = now_seconds();
  engine_.settle();
  copied_ = awaits_copy_ = deck_.checkpoint.async && !last_of_run;
  if (copied_) return engine_.copy_with_next_step();
  const double settled = now_seconds() - asked_;
  next(settled, settled);
  // Each is begun before a step changes what it is of.
  while (!queue_.empty()) advance();
  if (!beside_steps() || last_of_run) complete();
}

void Saver::begin_copied() {
  if (!std::exchange(awaits_copy_, false)) return;
  copied_ = !engine_.cancel_copy();
  in_steps_ = copied_ ? engine_.waited_for_copies() : 0;
  next(now_seconds() - asked_, in_steps_);
}

std::vector<SaveOf> Saver::missing(std::int64_t step) const {
  const auto due = [&](std::int64_t every) { return every > 0 && step > 0 && step % every == 0; };
  // A kill may have come before `latest` was moved, too.
  const auto newest = [](const std::string& folder) {
    return io::find_head(io::survey_checkpoints(folder)).entry.value_or(io::CheckpointEntry{}).step;
  };
  const bool from_memory = claim_ && (last_.empty() || io::CheckpointReader(last_).meta().step != step);
  const bool state = from_memory && (due(deck_.checkpoint.every) || is_best(step)),
             weights = claim_ && due(deck_.checkpoint.weights_every) && newest(weights_root_) != step;
  std::vector<SaveOf> missing;
  if (world_.sum(std::int64_t{state}) > 0) missing.push_back(SaveOf::state);
  if (world_.sum(std::int64_t{weights}) > 0) missing.push_back(SaveOf::weights);
  return missing;
}

void Saver::next(double seconds, double stalled) {
  what_ = queue_.front(), queue_.erase(queue_.begin());
  const double begin = now_seconds();
  begin_ = begin - seconds, again_ = false;
  layout_ = engine_.checkpoint_layout(), layout_.files = files_;
  if (!files_.empty() && has_constants(layout_, world_.ranks()))
    for (const int file : files_) layout_.files.push_back(file + std::ranges::max(files_) + 1);
  if (what_ == SaveOf::weights) {
    layout_.groups = {std::string(master_group)};
    // What no weights lie in comes last, so that the others keep their numbers.
    std::erase_if(layout_.tensors, [&](const io::CheckpointTensor& tensor) { return !layout_.lies_in(tensor, 0); });
    std::erase_if(layout_.units, [](const io::CheckpointUnit& unit) { return !unit.lies_in(0); });
    for (io::CheckpointUnit& unit : layout_.units) unit.groups.clear();
    // A tower beside the model may be all that no step changes.
    const auto is_constant = [&](const io::CheckpointUnit& unit) {
      return !unit.holders.empty() && unit.holders.front() >= world_.ranks();
    };
    if (std::ranges::none_of(layout_.units, is_constant)) layout_.shards = world_.ranks(), layout_.files = files_;
  }
  start();
  stalled_ = stalled + now_seconds() - begin;
}

std::vector<io::ShardSlice> Saver::slices() const {
  std::vector<io::ShardSlice> slices = copied_ ? engine_.copied_slices() : engine_.state().checkpoint_slices();
  if (what_ == SaveOf::state) return slices;
  const auto groups = engine_.checkpoint_layout().groups;
  const auto master = std::ranges::find(groups, master_group) - groups.begin();
  std::erase_if(slices, [&](const io::ShardSlice& slice) { return slice.group != master; });
  for (io::ShardSlice& slice : slices) slice.group = 0;
  return slices;
}

void Saver::look() {
  begin_copied();
  if (part_ == Part::none) return;
  const bool done = work_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if (world_.sum(done ? 0 : 1) == 0) go_on();
}

void Saver::finish() { complete(); }

void Saver::complete() {
  begin_copied();
  while (part_ != Part::none) advance();
}

void Saver::advance() {
  const double begin = now_seconds();
  work_.wait();
  stalled_ += now_seconds() - begin;
  go_on();
}

void Saver::start() {
  staged_ = staging_ && !std::exchange(direct_, false);
  attempt([&] {
    world_.together([&] {
      if (!claim_) return;
      claim_->renew();
      io::begin_checkpoint(root(), step_);
    });
    const std::vector<io::ShardSlice> all = slices();
    std::vector<io::ShardSlice> mine = slices_in(layout_, world_.rank(), all);
    const std::function<void()> constants = save_constants(all);
    if (!staged_)
      return begin(Part::shards, [this, constants, mine = std::move(mine)] {
        constants();
        io::write_shard(root(), step_, layout_, world_.rank(), mine);
      });
    part_ = Part::staging;
    world_.together([&] { staging_->write(step_, layout_, world_.rank(), mine); });
    begin(Part::shards, [this, constants] {
      constants();
      staging_->drain(root(), step_, layout_, world_.rank());
    });
  });
}

std::function<void()> Saver::save_constants(const std::vector<io::ShardSlice>& all) {
  linked_ = link_constants();
  if (linked_ || !has_constants(layout_, world_.ranks())) return [] {};
  const int shard = constant_shard(world_.rank(), world_.ranks());
  std::function<void()> later = [this, shard, slices = slices_in(layout_, shard, all)] {
    io::write_shard(root(), step_, layout_, shard, slices);
  };
  // Reading them elsewhere would stand between what steps read and write there.
  world_.together([&] {
    if (!engine_.constants_on_host()) std::exchange(later, [] {})();
  });
  return later;
}

bool Saver::link_constants() {
  const std::string& from = constants_in_[static_cast<std::size_t>(what_)];
  if (from.empty()) return false;
  const int shard = constant_shard(world_.rank(), world_.ranks()), file = io::file_of(layout_, shard);
  const bool first = io::shards_in(layout_, file).front() == shard;
  const bool linked = !first || io::link_file(from, root(), step_, layout_, file);
  if (world_.sum(linked ? 0 : 1) == 0) return true;
  world_.together([&] {
    if (first) io::unlink_file(root(), step_, file);
  });
  return false;
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
  std::vector<int> shards{world_.rank()};
  if (has_constants(layout_, world_.ranks()) && !linked_) shards.push_back(constant_shard(world_.rank(), world_.ranks()));
  for (const int shard : shards)
    if (const int file = io::file_of(layout_, shard); io::shards_in(layout_, file).front() == shard)
      io::seal_file(root(), step_, layout_, file);
}

void Saver::write_index() {
  if (!claim_) return;
  std::vector<int> linked;
  for (int shard = world_.ranks(); linked_ && shard < layout_.shards; ++shard) linked.push_back(io::file_of(layout_, shard));
  io::CheckpointMeta meta = meta_of_save(deck_, claim_->lineage(), data_);
  meta.step = step_, meta.sample_cursor = sample_cursor_, meta.values = values_;
  io::write_index(root(), layout_, meta, linked);
  // A run that goes back to a checkpoint that was due keeps those, whatever stops and saves that were tried again have left.
  const std::int64_t due = deck_.guards.spike == SpikeMode::rollback ? deck_.checkpoint.every : 0;
  const io::Retention retention{
      .newest = deck_.checkpoint.keep, .every = deck_.checkpoint.keep_every, .best = deck_.checkpoint.keep_best, .due = due};
  io::commit_checkpoint(root(), step_, what_ == SaveOf::state ? retention : io::Retention());
}

void Saver::attempt(const std::function<void()>& piece) {
  try {
    piece();
  } catch (const AgreedError& error) {
    const Part part = std::exchange(part_, Part::none);
    if (error.code == ExitCode::numerics) return failed(error);  // wherever it would go
    const bool gone = claim_ && !claim_->stands();
    // Steps have gone on since a copy was made on the node's disk, of which too little is left.
    const bool state_is_here = !staged_ || part == Part::staging || last_of_run_;
    if (!world_.broadcast_text(gone ? "gone" : "").empty() && state_is_here && !std::exchange(again_, true)) return start();
    direct_ = staged_;
    if (!staged_ || !state_is_here) return failed(error);
    if (world_.rank() == 0) warning("{} The save of step {} goes straight to {}, and the steps wait for it.", error.what(), step_, root());
    start();
  }
}

void Saver::failed(const AgreedError& error) {
  if (claim_) io::discard_checkpoint(root(), step_);
  if (what_ == SaveOf::state && deck_.checkpoint.keep_best) engine_.evaluations().lose(step_);
  std::string what = fmt::format("{}\nThe weights of step {} were not saved.", error.what(), step_);
  if (what_ == SaveOf::state)
    what = fmt::format("{}\nThe checkpoint of step {} was not written; {}.", error.what(), step_,
                       last_.empty() ? "there is none before it" : fmt::format("the one before it is intact: {}", last_));
  const std::int64_t retries = deck_.checkpoint.retries;
  std::int64_t& failures = failures_[static_cast<std::size_t>(what_)];
  if (error.code != ExitCode::storage || last_of_run_ || failures == retries)
    throw AgreedError(error.code, what + " Training stops here.", error.speaker);
  ++failures, failed_.push_back(what_);
  if (world_.rank() == 0) warning("{} It is tried again after the next step: {} of {} (checkpoint.retries).", what, failures, retries);
  if (!queue_.empty()) next();
}

void Saver::saved() {
  part_ = Part::none, failures_[static_cast<std::size_t>(what_)] = 0;
  const std::string path = fmt::format("{}/{}", root(), io::checkpoint_name(step_));
  if (what_ == SaveOf::state) note_saved(step_, world_.rank() == 0), last_ = path;
  if (has_constants(layout_, world_.ranks())) constants_in_[static_cast<std::size_t>(what_)] = path;
  const double seconds = now_seconds() - begin_, stalled = beside_steps() ? stalled_ : seconds;
  const std::string beside = beside_steps() ? fmt::format(" beside the steps, which waited {:.3f} s", stalled_) : "";
  const SaveBytes bytes = save_bytes(layout_, world_.ranks());
  const std::string linked =
      linked_ ? fmt::format("; {} that no step changes are linked", human_bytes(static_cast<double>(bytes.constant))) : "";
  const double written = static_cast<double>(bytes.changing + (linked_ ? 0 : bytes.constant));
  note_({what_, step_, fmt::format("saved {} ({} in {:.2f} s{}){}", path, human_bytes(written), seconds, beside, linked), seconds, stalled,
         std::exchange(in_steps_, 0)});
  if (!queue_.empty()) next();
}

std::string choose_verified(const World& world, const std::string& who, const std::vector<std::string>& candidates) {
  const std::string all = world.broadcast_text(fmt::format("{}", fmt::join(candidates, "\n")));
  const auto hear_stops = [&](std::int64_t, std::int64_t) {
    if (stop_requested())
      fail(ExitCode::interrupted, "stopped by {} while checkpoints were verified: there is nothing to save; start the same command again",
           signal_name(stop_signal()));
  };
  std::istringstream lines(all);
  for (std::string candidate; std::getline(lines, candidate);) try {
      world.together([&] { io::CheckpointReader(candidate).verify(hear_stops, world.rank(), world.ranks()); });
      info("{} goes on from {}, which verified", who, candidate);
      return candidate;
    } catch (const AgreedError& error) {
      if (error.code != ExitCode::checkpoint) throw;
      if (world.rank() == 0) warning("{} skipped {}: {}", who, candidate, error.what());
    }
  if (all.empty()) return "";
  world.together([&] {
    fail(ExitCode::checkpoint,
         "{}: none of the run's checkpoints verifies. Name one of another run by run.resume=PATH, or begin anew with "
         "run.resume=never run.overwrite=true.",
         who);
  });
  return "";
}

void clear_last_staging(const World& world, const std::string& last, const Deck& deck, const RunFolder& folder) {
  if (last.empty() || last == deck.checkpoint.staging || world.place().local_rank != 0) return;
  io::remove_left_staging(last, folder.checkpoints());
}

void load_checkpoint(const World& world, Engine& engine, const std::string& path) {
  std::optional<io::CheckpointReader> reader;
  world.together([&] { reader.emplace(path); });
  if (has_weights_alone(*reader) && engine.checkpoint_layout().groups.size() > 1)
    info("{} holds weights alone: the optimizer's moments begin at zero", path);
  if (engine.planned().request.deck.zero.error_feedback.enabled)
    info("checkpoints hold no errors of gradients: those of zero.error_feedback begin at zero");
  if (engine.leaves_own(*reader)) info("{} was saved by another number of ranks: what signs have taken from momenta begins at zero", path);
  world.together([&] { engine.read_state(*reader); });
  engine.publish();
}

}  // namespace tessera
