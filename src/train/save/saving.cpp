#include "train/save/saving.hpp"

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
#include "train/engine/same_state.hpp"
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

/// Whether the run's best evaluation is that of this step, and its checkpoint is kept.
bool is_best(const Deck& deck, const Engine& engine, std::int64_t step) {
  return deck.checkpoint.keep_best && engine.evaluations().best_step == step;
}

/// What a save writes of this rank's state.
std::vector<io::ShardSlice> slices_of(const Save& save, const Engine& engine) {
  std::vector<io::ShardSlice> slices = save.copied ? engine.copied_slices() : engine.state().checkpoint_slices();
  if (save.what == SaveOf::state) return slices;
  const auto groups = engine.checkpoint_layout().groups;
  const auto master = std::ranges::find(groups, master_group) - groups.begin();
  std::erase_if(slices, [&](const io::ShardSlice& slice) { return slice.group != master; });
  for (io::ShardSlice& slice : slices) slice.group = 0;
  return slices;
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
      kinds_{{SaveOf::state, {.root = folder.checkpoints()}}, {SaveOf::weights, {.root = folder.weights()}}},
      claim_(claim),
      last_(std::move(last)),
      data_(std::move(data)),
      note_(std::move(note)) {
  files_ = files_of_ranks(world_, deck_.checkpoint.files);
  if (deck_.checkpoint.staging.empty()) return;
  world_.together([&] { staging_.emplace(deck_.checkpoint.staging, folder.checkpoints(), world_.rank()); });
  // All ranks have theirs now: what else of this run is there on the node is left by ranks that were killed.
  if (world_.place().local_rank == 0) io::remove_left_staging(deck_.checkpoint.staging, folder.checkpoints());
  foresee_full_staging(world_, engine_, staging_->folder());
}

std::vector<SaveOf> Saver::due(std::int64_t step, bool last_of_run, bool state_too) const {
  auto wanted = [&](SaveOf what, std::int64_t every) { return (every > 0 && step % every == 0) || kinds_.at(what).again; };
  std::vector<SaveOf> due;
  if (last_of_run || (state_too && (is_best(deck_, engine_, step) || wanted(SaveOf::state, deck_.checkpoint.every))))
    due.push_back(SaveOf::state);
  if (wanted(SaveOf::weights, deck_.checkpoint.weights_every)) due.push_back(SaveOf::weights);
  return due;
}

bool Saver::may_be_due(std::int64_t step, bool last_of_run) const {
  return !due(step, last_of_run, true).empty() || (deck_.checkpoint.keep_best && deck_.evaluate.due(step, deck_.run.steps));
}

void Saver::save(std::int64_t step, bool last_of_run, const std::vector<SaveOf>& what) {
  finish();
  queue_ = what;
  // The state is that of now, also where it is copied with the next step.
  save_ = {.step = step,
           .sample_cursor = engine_.run_values().sample_cursor,
           .last_of_run = last_of_run,
           .values = engine_.saved_run_values(),
           .asked = now_seconds()};
  for (const SaveOf one : what) kinds_.at(one).again = false;
  engine_.settle();
  if (deck_.checkpoint.async && !last_of_run) {
    save_.state = Save::State::copying, save_.copied = true;
    return engine_.copy_with_next_step();
  }
  const double settled = now_seconds() - save_.asked;
  next(settled, settled);
  // Each is begun before a step changes what it is of.
  while (!queue_.empty()) advance();
  if (!beside_steps() || last_of_run) finish();
}

void Saver::begin_copied() {
  if (save_.state != Save::State::copying) return;
  save_.state = Save::State::none;
  save_.copied = !engine_.cancel_copy();
  save_.in_steps = save_.copied ? engine_.waited_for_copies() : 0;
  next(now_seconds() - save_.asked, save_.in_steps);
}

std::vector<SaveOf> Saver::missing(std::int64_t step) const {
  const auto due = [&](std::int64_t every) { return every > 0 && step > 0 && step % every == 0; };
  // A kill may have come before `latest` was moved, too.
  const auto newest = [](const std::string& folder) {
    return io::find_head(io::survey_checkpoints(folder)).entry.value_or(io::CheckpointEntry{}).step;
  };
  const bool from_memory = claim_ && (last_.empty() || io::CheckpointReader(last_).meta().step != step);
  const bool state = from_memory && (due(deck_.checkpoint.every) || is_best(deck_, engine_, step)),
             weights = claim_ && due(deck_.checkpoint.weights_every) && newest(kinds_.at(SaveOf::weights).root) != step;
  std::vector<SaveOf> missing;
  if (world_.sum(std::int64_t{state}) > 0) missing.push_back(SaveOf::state);
  if (world_.sum(std::int64_t{weights}) > 0) missing.push_back(SaveOf::weights);
  return missing;
}

void Saver::next(double seconds, double stalled) {
  const double begin = now_seconds();
  save_.what = queue_.front(), queue_.erase(queue_.begin());
  save_.begin = begin - seconds, save_.repeated = false;
  io::CheckpointLayout& layout = save_.layout;
  layout = engine_.checkpoint_layout(), layout.files = files_;
  if (!files_.empty() && has_constants(layout, world_.ranks()))
    for (const int file : files_) layout.files.push_back(file + std::ranges::max(files_) + 1);
  if (save_.what == SaveOf::weights) {
    layout.groups = {std::string(master_group)};
    // What no weights lie in comes last, so that the others keep their numbers.
    std::erase_if(layout.tensors, [&](const io::CheckpointTensor& tensor) { return !layout.lies_in(tensor, 0); });
    std::erase_if(layout.units, [](const io::CheckpointUnit& unit) { return !unit.lies_in(0); });
    for (io::CheckpointUnit& unit : layout.units) unit.groups.clear();
    // A tower beside the model may be all that no step changes.
    const auto is_constant = [&](const io::CheckpointUnit& unit) {
      return !unit.holders.empty() && unit.holders.front() >= world_.ranks();
    };
    if (std::ranges::none_of(layout.units, is_constant)) layout.shards = world_.ranks(), layout.files = files_;
  }
  start();
  save_.stalled = stalled + now_seconds() - begin;
}

void Saver::look() {
  begin_copied();
  if (save_.state == Save::State::none) return;
  const bool done = work_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if (world_.sum(done ? 0 : 1) == 0) go_on();
}

void Saver::finish() {
  begin_copied();
  while (save_.state != Save::State::none) advance();
}

void Saver::advance() {
  const double begin = now_seconds();
  work_.wait();
  save_.stalled += now_seconds() - begin;
  go_on();
}

void Saver::start() {
  save_.staged = staging_ && !std::exchange(direct_, false);
  attempt([&] {
    world_.together([&] {
      if (!claim_) return;
      claim_->renew();
      io::begin_checkpoint(root(), save_.step);
    });
    const std::vector<io::ShardSlice> all = slices_of(save_, engine_);
    save_.slices = slices_in(save_.layout, world_.rank(), all);
    save_.write_constants = save_constants(all);
    enter_next_state();
  });
}

void Saver::enter_next_state() {
  save_.state = save_.next_state();
  void (Saver::*work)() = &Saver::write_shard;
  switch (save_.state) {
    case Save::State::none:
    case Save::State::copying:
      return saved();
    case Save::State::staging:
      world_.together([&] { staging_->write(save_.step, save_.layout, world_.rank(), save_.slices); });
      return enter_next_state();
    case Save::State::shards:
      break;
    case Save::State::seals:
      work = &Saver::seal_files;
      break;
    case Save::State::index:
      work = &Saver::write_index;
      break;
  }
  // Deferred work is done by whoever asks for its end.
  work_ = std::async(beside_steps() ? std::launch::async : std::launch::deferred, work, this);
}

void Saver::go_on() {
  attempt([&] {
    world_.together([&] { work_.get(); });
    enter_next_state();
  });
}

void Saver::write_shard() {
  save_.write_constants();
  if (save_.staged)
    staging_->drain(root(), save_.step, save_.layout, world_.rank());
  else
    io::write_shard(root(), save_.step, save_.layout, world_.rank(), save_.slices);
}

std::function<void()> Saver::save_constants(const std::vector<io::ShardSlice>& all) {
  save_.linked = link_constants();
  if (save_.linked || !has_constants(save_.layout, world_.ranks())) return [] {};
  const int shard = constant_shard(world_.rank(), world_.ranks());
  std::function<void()> later = [this, shard, slices = slices_in(save_.layout, shard, all)] {
    io::write_shard(root(), save_.step, save_.layout, shard, slices);
  };
  // Reading them elsewhere would stand between what steps read and write there.
  world_.together([&] {
    if (!engine_.constants_on_host()) std::exchange(later, [] {})();
  });
  return later;
}

bool Saver::link_constants() {
  const std::string& from = kinds_.at(save_.what).constants_in;
  if (from.empty()) return false;
  const int shard = constant_shard(world_.rank(), world_.ranks()), file = io::file_of(save_.layout, shard);
  const bool first = io::shards_in(save_.layout, file).front() == shard;
  const bool linked = !first || io::link_file(from, root(), save_.step, save_.layout, file);
  if (world_.sum(linked ? 0 : 1) == 0) return true;
  world_.together([&] {
    if (first) io::unlink_file(root(), save_.step, file);
  });
  return false;
}

void Saver::seal_files() {
  std::vector<int> shards{world_.rank()};
  if (has_constants(save_.layout, world_.ranks()) && !save_.linked) shards.push_back(constant_shard(world_.rank(), world_.ranks()));
  for (const int shard : shards)
    if (const int file = io::file_of(save_.layout, shard); io::shards_in(save_.layout, file).front() == shard)
      io::seal_file(root(), save_.step, save_.layout, file);
}

void Saver::write_index() {
  if (!claim_) return;
  std::vector<int> linked;
  for (int shard = world_.ranks(); save_.linked && shard < save_.layout.shards; ++shard) linked.push_back(io::file_of(save_.layout, shard));
  io::CheckpointMeta meta = meta_of_save(deck_, claim_->lineage(), data_);
  meta.step = save_.step, meta.sample_cursor = save_.sample_cursor, meta.values = save_.values;
  io::write_index(root(), save_.layout, meta, linked);
  // A run that goes back to a checkpoint that was due keeps those, whatever stops and saves that were tried again have left.
  const std::int64_t due = deck_.guards.spike == SpikeMode::rollback ? deck_.checkpoint.every : 0;
  const io::Retention retention{
      .newest = deck_.checkpoint.keep, .every = deck_.checkpoint.keep_every, .best = deck_.checkpoint.keep_best, .due = due};
  io::commit_checkpoint(root(), save_.step, save_.what == SaveOf::state ? retention : io::Retention());
}

void Saver::attempt(const std::function<void()>& piece) {
  try {
    piece();
  } catch (const AgreedError& error) {
    const bool can_repeat = save_.can_repeat();
    save_.state = Save::State::none;
    if (error.code == ExitCode::numerics) return failed(error);  // wherever it would go
    const bool gone = claim_ && !claim_->stands();
    if (!world_.broadcast_text(gone ? "gone" : "").empty() && can_repeat && !std::exchange(save_.repeated, true)) return start();
    direct_ = save_.staged;
    if (!save_.staged || !can_repeat) return failed(error);
    if (world_.rank() == 0)
      warning("{} The save of step {} goes directly to {}, and the steps wait for it.", error.what(), save_.step, root());
    start();
  }
}

void Saver::failed(const AgreedError& error) {
  if (claim_) io::discard_checkpoint(root(), save_.step);
  if (save_.what == SaveOf::state && deck_.checkpoint.keep_best) engine_.evaluations().lose(save_.step);
  std::string what = fmt::format("{}\nThe weights of step {} were not saved.", error.what(), save_.step);
  if (save_.what == SaveOf::state)
    what = fmt::format("{}\nThe checkpoint of step {} was not written; {}.", error.what(), save_.step,
                       last_.empty() ? "there is none before it" : fmt::format("the one before it is intact: {}", last_));
  const std::int64_t retries = deck_.checkpoint.retries;
  std::int64_t& failures = kinds_.at(save_.what).failures;
  if (error.code != ExitCode::storage || save_.last_of_run || failures == retries)
    throw AgreedError(error.code, what + " Training stops here.", error.speaker);
  ++failures, kinds_.at(save_.what).again = true;
  if (world_.rank() == 0) warning("{} It is tried again after the next step: {} of {} (checkpoint.retries).", what, failures, retries);
  if (!queue_.empty()) next();
}

void Saver::saved() {
  kinds_.at(save_.what).failures = 0;
  const std::string path = fmt::format("{}/{}", root(), io::checkpoint_name(save_.step));
  if (save_.what == SaveOf::state) note_saved(save_.step, world_.rank() == 0), last_ = path;
  if (has_constants(save_.layout, world_.ranks())) kinds_.at(save_.what).constants_in = path;
  const double seconds = now_seconds() - save_.begin, stalled = beside_steps() ? save_.stalled : seconds;
  const std::string beside = beside_steps() ? fmt::format(" while steps continued, after they had waited {:.3f} s", save_.stalled) : "";
  const SaveBytes bytes = save_bytes(save_.layout, world_.ranks());
  const std::string linked =
      save_.linked ? fmt::format("; {} that no step changes are linked", human_bytes(static_cast<double>(bytes.constant))) : "";
  const double written = static_cast<double>(bytes.changing + (save_.linked ? 0 : bytes.constant));
  note_({save_.what, save_.step, fmt::format("saved {} ({} in {:.2f} s{}){}", path, human_bytes(written), seconds, beside, linked), seconds,
         stalled, std::exchange(save_.in_steps, 0)});
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
      info("{} resumes from {}, which passed verification", who, candidate);
      return candidate;
    } catch (const AgreedError& error) {
      if (error.code != ExitCode::checkpoint) throw;
      if (world.rank() == 0) warning("{} skipped {}: {}", who, candidate, error.what());
    }
  if (all.empty()) return "";
  world.together([&] {
    fail(ExitCode::checkpoint,
         "{}: none of the run's checkpoints passes verification. Name one of another run by run.resume=PATH, or start over with "
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
    info("{} holds only weights: the optimizer's moments start at zero", path);
  if (engine.planned().request.deck.zero.error_feedback.enabled)
    info("checkpoints do not store rounding errors of gradients: those of zero.error_feedback start at zero");
  if (engine.leaves_own(*reader)) info("{} was saved by another number of ranks: the rounding errors of signs start at zero", path);
  world.together([&] { engine.read_state(*reader); });
  engine.publish();
}

}  // namespace tessera
