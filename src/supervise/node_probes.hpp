// Which nodes answer: on each a process is started that ends well at once.
#pragma once
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "supervise/child.hpp"

namespace tessera {

/// Whether a node is taken to be silent after so many seconds: after `most`, or, where at least half of those asked with it have answered,
/// after 2 s that are also 4 times as long as the slowest of them took (`answers`, seconds).
bool taken_as_silent(double waited, std::span<const double> answers, std::size_t asked, double most);

/// Asks many nodes at once, beside what the caller waits for. What a node has answered holds until forget().
class NodeProbes {
 public:
  using Start = std::function<std::unique_ptr<LauncherProcess>(const std::string& node)>;
  /// `most`: seconds that a node may take.
  NodeProbes(Start start, double most) : start_(std::move(start)), most_(most) {}
  ~NodeProbes() { forget(); }
  NodeProbes(const NodeProbes&) = delete;
  NodeProbes& operator=(const NodeProbes&) = delete;
  /// Those that were not asked yet.
  void ask(const std::vector<std::string>& nodes);
  /// Those of `nodes`, all of them asked, that do not answer; nothing while that is not known of each.
  std::optional<std::vector<std::string>> silent(const std::vector<std::string>& nodes);
  /// Takes the answers that have come: how long one took is known from the look that finds it.
  void look();
  void forget();

 private:
  struct Probe {
    std::string node;
    std::unique_ptr<LauncherProcess> process = {};  ///< none: not started yet, or settled
    double begun = 0, took = 0;                     // seconds; begun 0: not yet
    std::optional<bool> answers = {};
    /// Nothing is lost with a process that does nothing, so it is not asked to end.
    void end();
  };
  Start start_;
  double most_;
  std::list<Probe> probes_;
};

}  // namespace tessera
