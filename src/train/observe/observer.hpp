// What looks at each step of a run when it is made: a file each, and a row of src/train/observe/observers.cpp.
#pragma once
#include <optional>

#include "base/progress.hpp"
#include "io/metrics/metrics.hpp"
#include "model/record/flops.hpp"
#include "schedule/trace/breakdown.hpp"
#include "topology/neighbours.hpp"
#include "train/data/batch_feed.hpp"
#include "train/engine/device_overhead.hpp"
#include "train/engine/engine.hpp"
#include "train/engine/machine_rate.hpp"
#include "train/folder/copies_record.hpp"
#include "train/folder/run_folder.hpp"
#include "train/observe/run_position.hpp"
#include "train/observe/step_pace.hpp"

namespace tessera {
namespace io {
class MetricsEndpoint;
}

class Ledger;
class ResumeProof;
struct SampleTexts;
class RunNotices;

/// Why a run goes back to a checkpoint before the step that is made, by itself.
struct GoingBack {
  std::int64_t step = 0;         ///< what nobody sees any more
  std::string why;               ///< "step 812: the loss is a spike"
  bool leaves_data_out = false;  ///< what the steps since that checkpoint were made of is not taken again
  std::vector<CopyDigest> copies =
      {};  ///< of this rank after that step, where they differed over ranks: made again they tell who was wrong
};

/// What a start has built for its steps.
struct RunParts {
  const World& world;
  const Deck& deck;
  Engine& engine;
  BatchFeed& feed;
  const TrainingData& data;
  RunFolder folder;
  RunClaim* claim = nullptr;  ///< rank 0's
  Ledger& ledger;
  RunNotices& notices;
  DeviceOverhead* overhead = nullptr;  ///< null without a GPU
  Yardstick& yardstick;
  FlopsPerToken flops;
  LaneMode lanes = LaneMode::inline_order;
  std::int64_t first_step = 0;              ///< steps that are done as the first one begins
  double launched = 0;                      ///< now_seconds() of the launch
  io::MetricsEndpoint* endpoint = nullptr;  ///< rank 0's, with metrics.prometheus
  RunPosition& position;
  Neighbours* neighbours = nullptr;          ///< null without checkpoint.neighbour_every
  CopiesRecord copies = {};                  ///< where their copies lie
  SampleTexts* samples = nullptr;            ///< null without samples.every
  GoingBack& going_back;                     ///< of who answers roll_back
  AgreedCopies& agreed;                      ///< what a checkpoint must hold, where copies are compared
  const std::vector<io::LeftOut>& left_out;  ///< what the run leaves out on its line
  std::string went_back = {};                ///< why this start began; empty where somebody has started it
  ResumeProof& proof;
  std::string checkpoint = {};                   ///< that the run goes on from, "" for none; rank 0's
  std::vector<io::CheckpointData> records = {};  ///< what it is trained on; rank 0's
};

/// Of each file of a mixture the mean over its targets in the last step's batch; no number where it has none there.
io::NamedNumbers loss_of_files(const RunParts& run);

/// What becomes of the run.
enum class Verdict : std::uint8_t {
  go_on,
  enough,    ///< its state is saved, and it is at its end before its last step
  stop,      ///< its state is saved, and no step follows in this start
  roll_back  ///< it goes on from a checkpoint before the step, which nobody sees any more
};

/// A step that is made.
struct StepEnd {
  std::int64_t done = 0;  ///< steps, with this one
  const StepReport& report;
  const StepFigures& figures;
  double data_seconds = 0;                  ///< of the step, for the reading of its batch
  const Timeline* timeline = nullptr;       ///< where an observer wants it
  std::optional<Breakdown> breakdown = {};  ///< of it, with run.breakdown_every
  std::optional<RouterFigures> router = {};
  std::optional<Stall> stall = {};     ///< where it stood still
  io::NamedNumbers rank_seconds = {};  ///< of each rank since the last of these, every run.breakdown_every steps
  Verdict verdict = Verdict::go_on;    ///< of those that have looked before
  bool last = false;                   ///< no step follows it
};

/// All ranks have the same observers, and ask them in the same order.
class Observer {
 public:
  virtual ~Observer() = default;
  /// Whether the step after `done` is to have a timeline. On a GPU its tasks are then no graph.
  virtual bool wants_timeline(std::int64_t done) const { return static_cast<void>(done), false; }
  /// The next step is of another phase, whose program is another.
  virtual void phase_ends() {}
  /// The batch of the step after `done` is there.
  virtual void before(std::int64_t done) { static_cast<void>(done); }
  /// Adds what it measures to a step, before any observer looks at it.
  virtual void measure(StepEnd& end) { static_cast<void>(end); }
  virtual Verdict after(const StepEnd& end) = 0;
  /// No step follows.
  virtual void finish(std::int64_t done) { static_cast<void>(done); }
};

}  // namespace tessera
