// Rows for a service that keeps figures of experiments, Weights & Biases or MLflow: by its Python package, in a process of its own. A step
// hands a row to a queue and goes on. A thread of the lowest class takes rows from there and waits for that process and its network.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/json.hpp"
#include "io/metrics/sink.hpp"

namespace tessera::io {

class Child;

struct TrackerRun {
  std::string key;      ///< of the deck, for messages: "metrics.wandb"
  std::string package;  ///< "wandb", "mlflow"
  std::string python;
  std::string record;   ///< file of the run's name there: a later start goes on with it
  std::string history;  ///< a metrics.jsonl, whose rows go first where there is no record
  Json asked;           ///< project, team, group, uri, name, folder, deck (an object of texts)
};

class Tracker : public MetricsSink {
 public:
  /// Rows that wait at most. One more is dropped and counted.
  static constexpr std::size_t most_rows = 1024;

  /// Error(environment) where the package cannot be imported. Where the service does not answer, that is said later, and the run goes on.
  explicit Tracker(TrackerRun run);
  /// The run ends badly, unless end() was called.
  ~Tracker() override;
  void write(const MetricRow& row) override;
  /// No row follows. Waits until all are there, for a minute at most.
  void end(bool well);

 private:
  void loop();
  void begin();
  void send_history();
  void send(const std::string& lines);

  TrackerRun run_;
  std::int64_t history_bytes_ = 0;
  std::unique_ptr<Child> child_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> queue_;  // the rest is guarded by mutex_
  std::int64_t dropped_ = 0;
  bool failed_ = false, ends_ = false, well_ = false, done_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace tessera::io
