// Which of a node's ranks says why a run ends.
#pragma once
#include <poll.h>

#include <atomic>

#include "base/clock.hpp"

namespace tessera {

/// Lies in memory that the node's ranks share, all zero at first. Locks and allocates nothing: handlers of signals use it too.
class NodeFloor {
 public:
  /// Whether the rank `own` of the node is to say why the run ends, with `status`; then it calls said(). False once it has been said. While
  /// another rank is about to say it this one waits, and is next where `has_ended` of that rank, or where it has said nothing for
  /// `patience_seconds`: it may be stopped.
  template <class HasEnded>
  bool take(int own, int status, const HasEnded& has_ended, double patience_seconds) {
    constexpr int pause_milliseconds = 5;
    int none = 0;
    status_.compare_exchange_strong(none, status);
    double since = now_seconds();
    for (int seen = 0; !said_.load(); poll(nullptr, 0, pause_milliseconds)) {
      int holder = holder_.load();
      if (holder != seen) seen = holder, since = now_seconds();
      const bool free = holder == 0 || has_ended(holder - 1) || now_seconds() - since > patience_seconds;
      // The one before may have ended because it was done.
      if (free && holder_.compare_exchange_strong(holder, own + 1)) return !said_.load();
    }
    return false;
  }
  void said() { said_.store(true); }
  /// Of the first rank that failed; 0: none has.
  int status() const { return status_.load(); }

 private:
  std::atomic<int> status_, holder_;  // 1 + a rank of the node
  std::atomic<bool> said_;
};

}  // namespace tessera
