#include "train/observe/neighbour_copies.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.hpp"
#include "base/end_report.hpp"
#include "base/log.hpp"
#include "io/checkpoint/format.hpp"
#include "io/files/posix_file.hpp"

namespace tessera {

NeighbourCopies::NeighbourCopies(const RunParts& run, Saver& saver, ProgressLog& progress)
    : run_(run), saver_(saver), progress_(progress), every_(run.neighbours ? run.deck.checkpoint.neighbour_every : 0) {
  if (every_ == 0) return;
  // What is the same of all copies comes from rank 0, which alone knows the run's line and its data.
  std::string text;
  if (run.claim) {
    const io::CheckpointMeta meta = meta_of_save(run.deck, run.claim->lineage(), run.records);
    text = io::description_text(meta, run.engine.checkpoint_layout());
  }
  meta_ = io::parse_description(run.world.broadcast_text(text), "rank 0's description").meta;
  run.world.together([&] { copies_.emplace(run.copies.run_folder(), run.copies.start, run.world.rank()); });
}

Verdict NeighbourCopies::after(const StepEnd& end) {
  if (every_ == 0) return Verdict::go_on;
  run_.position.turn_to("the copies for neighbours");
  if (work_.valid()) {
    const bool done = work_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    if (run_.world.sum(done ? 0 : 1) == 0) agree();
  }
  // A save beside the steps is written from the same memory.
  const bool saves = run_.deck.checkpoint.async && !saver_.due(end.done, end.last, true).empty();
  if (saves) complete();
  if (!end.last && end.verdict == Verdict::go_on && end.done % every_ == 0 && !work_.valid() && !saver_.reads_copies()) begin(end.done);
  return Verdict::go_on;
}

void NeighbourCopies::begin(std::int64_t step) {
  begun_ = now_seconds();
  run_.engine.settle();
  meta_.step = step, meta_.sample_cursor = run_.engine.run_values().sample_cursor, meta_.values = run_.engine.saved_run_values();
  layout_ = run_.engine.checkpoint_layout();
  layout_.files.clear();
  fault_.clear();
  try {
    copies_->begin(step);
    // The steps wait for what lies in a GPU's memory, once.
    if (writes_constants() && !run_.engine.constants_on_host()) write_constants();
  } catch (const Error& error) {
    fault_ = error.what();
  }
  run_.engine.copy_with_next_step();
  work_ = std::async(std::launch::async, [this] {
    while (!run_.engine.copies_are_made()) {
      if (given_up_) return;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    copy();
  });
}

void NeighbourCopies::write_constants() const {
  const int shard = constant_shard(run_.world.rank(), run_.world.ranks());
  copies_->write(meta_.step, layout_, shard, slices_in(layout_, shard, run_.engine.copied_slices()));
}

std::string NeighbourCopies::write() const try {
  const int rank = run_.world.rank(), kept = run_.neighbours->kept();
  copies_->write(meta_.step, layout_, rank, slices_in(layout_, rank, run_.engine.copied_slices()));
  if (writes_constants()) {
    if (run_.engine.constants_on_host()) write_constants();
  } else if (has_constants(layout_, run_.world.ranks())) {
    copies_->link(last_, meta_.step, constant_shard(rank, run_.world.ranks()));
    if (kept != rank) copies_->link(last_, meta_.step, constant_shard(kept, run_.world.ranks()));  // a single rank keeps its own
  }
  if (run_.world.place().local_rank < 2) copies_->describe(meta_, layout_);  // where a folder goes, another of the node has it
  return "";
} catch (const Error& error) {
  return error.what();
}

void NeighbourCopies::pass_on(int mine, int theirs, std::string& fault) const try {
  std::optional<io::PosixFile> file;
  std::optional<io::ArrivingFile> arriving;
  Outgoing outgoing;
  if (fault.empty()) {
    file = io::PosixFile::open(copies_->shard_path(meta_.step, mine), ExitCode::storage);
    outgoing = {.bytes = file->size(), .read = [&](std::int64_t at, std::span<std::byte> out) { file->read(at, out.data(), out.size()); }};
  }
  run_.neighbours->pass(outgoing, {.begin =
                                       [&](std::int64_t bytes) {
                                         if (bytes >= 0)
                                           arriving.emplace(copies_->shard_path(meta_.step, theirs), bytes, copies_->aside_path(theirs));
                                       },
                                   .write = [&](std::int64_t at, std::span<const std::byte> piece) { arriving->write(at, piece); },
                                   .end =
                                       [&] {
                                         if (arriving) arriving->stands();
                                       }});
} catch (const Error& error) {
  if (error.code == ExitCode::lost) throw;
  if (fault.empty()) fault = error.what();
}

void NeighbourCopies::copy() {
  std::string fault = fault_.empty() ? write() : fault_;
  const int rank = run_.world.rank(), ranks = run_.world.ranks(), kept = run_.neighbours->kept();
  pass_on(rank, kept, fault);
  if (writes_constants()) pass_on(constant_shard(rank, ranks), constant_shard(kept, ranks), fault);
  if (!fault.empty()) fail(ExitCode::storage, "{}", fault);
}

void NeighbourCopies::complete() {
  if (!work_.valid()) return;
  if (run_.engine.cancel_copy()) {
    given_up_ = true;
    work_.get();
    given_up_ = false;
    return;
  }
  work_.wait();
  agree();
}

NeighbourCopies::~NeighbourCopies() {
  if (!work_.valid()) return;
  given_up_ = true;
  run_.neighbours->abort();
}

void NeighbourCopies::agree() {
  try {
    run_.world.together([&] { work_.get(); });
  } catch (const AgreedError& error) {
    copies_->remove(meta_.step);
    if (error.code != ExitCode::storage) throw;
    if (run_.world.rank() == 0)
      warning("{} The state of step {} was not replicated (checkpoint.neighbour_every){}.", error.what(), meta_.step,
              last_ < 0 ? "" : fmt::format("; the replicas of step {} remain", last_));
    return;
  }
  const double seconds = now_seconds() - begun_;
  note_copied(meta_.step, run_.world.rank() == 0);
  if (last_ >= 0) {
    copies_->set_aside(last_);
  } else {
    // What the start before has left goes now that it is not needed.
    if (run_.world.place().local_rank == 0)
      io::remove_state_copies(run_.copies.run_folder(), io::KeptCopies{.start = run_.copies.start, .step = meta_.step, .newer_too = true});
    const std::int64_t bytes = run_.engine.checkpoint_layout().bytes();
    progress_.note(fmt::format(
        "the state after step {} is in the memory of two ranks each: {} in all, copied in {:.2f} s while steps continued{}", meta_.step,
        human_bytes(2 * static_cast<double>(bytes)), seconds, every_ == 1 ? "" : fmt::format("; every {} steps from now on", every_)));
  }
  last_ = meta_.step;
}

void NeighbourCopies::finish(std::int64_t) {
  if (every_ == 0) return;
  complete();
  // The checkpoint of the last step stands on disk.
  run_.world.barrier();
  if (run_.world.place().local_rank == 0) io::remove_state_copies(run_.copies.run_folder());
  if (run_.world.rank() == 0) remove_copies_record(run_.folder);
}

}  // namespace tessera
