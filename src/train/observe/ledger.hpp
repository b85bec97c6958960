// The history of a run, which outlives its starts: RUN/events.jsonl, by rank 0, and where the wall time went. A step costs additions alone.
#pragma once
#include <optional>
#include <string>

#include "train/observe/goodput.hpp"
#include "train/observe/observer.hpp"
#include "train/save/saving.hpp"

namespace tessera {

/// On ranks that have not begun it hears all and does nothing.
class Ledger : public Observer {
 public:
  /// Rank 0, before metrics.jsonl is cut back to the steps that stand: an event of the start, with what will be done twice.
  void begin(const RunParts& run);

  /// The first step begins.
  void training();
  Verdict after(const StepEnd& end) override;
  /// After so many steps; where the time has gone since the first launch.
  Goodput saved(std::int64_t done, const Saved& save);
  void evaluated(std::int64_t done, double seconds, double loss);
  /// Before its last step, since evaluations got no better.
  void ended_early(std::int64_t done, const std::string& why);
  void warned(std::int64_t done, const std::string& text);
  /// A step stood still.
  void stalled(std::int64_t done, Json fields) { write(done, "stall", std::move(fields)); }
  void entered_phase(std::int64_t done, std::size_t phase, double seconds, const std::string& text);
  /// By the run's last step, a signal, or a failure, once.
  void end(ExitCode code, const std::string& failure = "");
  Goodput now() const;
  std::int64_t done() const { return done_; }

 private:
  void write(std::int64_t done, const char* event, Json fields, bool with_sums = false);
  std::optional<io::EventLog> log_;
  RunClaim* claim_ = nullptr;
  double launched_ = 0;  ///< now_seconds()
  GoodputAccount account_;
  std::int64_t done_ = 0;
};

}  // namespace tessera
