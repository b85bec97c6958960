// Where what is not finite comes from: looks at what passes write while a program runs.
#pragma once
#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "schedule/run/task_table.hpp"

namespace tessera {

/// What a task was the first to write.
struct Finding {
  std::string task, value;   ///< "backward layers.2.mlp", "the gradient of layers.2.mlp.w_down"
  std::int64_t element = 0;  ///< in the order of memory
  std::string text;          ///< "nan"
};

/// Costs a task one look at a flag while nothing is asked for.
class Witness {
 public:
  /// `read` copies from where tasks compute to the host, once what has been asked of the task's lane is done.
  Witness(const Schedule& schedule, std::function<void(void* to, const void* from, std::int64_t bytes)> read)
      : schedule_(schedule), read_(std::move(read)) {}
  /// From here on each pass's streams, their gradients and gradients of weights are looked at when they are written.
  void begin();
  /// The first that was not finite; none where all were.
  std::optional<Finding> end();
  bool looks() const { return looks_.load(std::memory_order_relaxed); }
  /// A task has done its work.
  void look(const TaskRun& run);

 private:
  const Schedule& schedule_;
  std::function<void(void*, const void*, std::int64_t)> read_;
  std::atomic<bool> looks_{false};
  std::mutex mutex_;
  std::optional<Finding> found_;
};

}  // namespace tessera
