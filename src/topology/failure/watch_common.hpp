// What the parts of a watch share: the links to this rank's neighbours in the tree, and what rank 0 knows of each rank.
#pragma once
#include <fmt/format.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "topology/failure/account.hpp"
#include "topology/failure/link.hpp"
#include "topology/failure/peer_file.hpp"
#include "topology/failure/watch_tree.hpp"
#include "topology/failure/whereabouts.hpp"

namespace tessera {

/// What a rank knows of all others before they talk, by rank.
struct WatchPlan {
  int rank = 0;
  std::vector<std::string> hosts;
  std::vector<int> leaders;  ///< the lowest rank of its node
  std::vector<ProcessName> processes;
  WatchTree tree;
};

/// A rank's connections; closed ones are of ranks that could not be reached.
struct WatchLinks {
  Link up;                 ///< none on rank 0
  std::vector<Link> down;  ///< in the order of the tree's children
};

/// What rank 0 knows of a rank.
struct WatchMember {
  Note note;
  double heard = 0;  ///< when
  bool asked = false, ended = false, reached = true;
};

/// A line that waits until nothing is locked.
struct WatchLine {
  std::string text, cause;
  bool warns = true;
};

class WatchCommon {
 public:
  /// `deliver` takes what this rank sends to itself.
  WatchCommon(WatchPlan plan, WatchLinks links, std::function<void(int from, const Message&)> deliver);
  ~WatchCommon();
  WatchCommon(const WatchCommon&) = delete;
  WatchCommon& operator=(const WatchCommon&) = delete;

  const std::string& host(int rank) const { return plan.hosts[static_cast<std::size_t>(rank)]; }
  std::size_t link_count() const { return links.down.size() + 1; }
  Link& link(std::size_t i) { return i < links.down.size() ? links.down[i] : links.up; }
  int neighbour(std::size_t i) const;
  void send_up(MessageKind kind, const std::string& text);
  void send_down(MessageKind kind, const std::string& text);
  void send_to(int rank, MessageKind kind, const std::string& text);
  void send_note() { send_up(MessageKind::note, fmt::format("{}\n{}", rank, whereabouts.note().print())); }
  /// The note of each rank, on rank 0. One has answered if it was not asked since, or if it sent a note in the last `silent_after` seconds.
  std::vector<RankNote> notes(std::optional<double> silent_after) const;
  /// Wakes the watch's thread.
  void wake() const;
  int wakes() const { return wake_; }

  const WatchPlan plan;
  const int rank;
  Whereabouts whereabouts;
  std::atomic<int> lost{-1};
  std::mutex mutex;  ///< of all below, and of the parts
  WatchLinks links;
  std::vector<WatchMember> members;  ///< rank 0's

 private:
  std::function<void(int from, const Message&)> deliver_;
  int wake_ = -1;  // an eventfd
};

}  // namespace tessera
