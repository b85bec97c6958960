// One save as a value: what it holds and how far it is.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.hpp"

namespace tessera {

/// What a save holds: all that a resume needs, below RUN/checkpoints, or the weights alone, which are kept for ever below RUN/weights.
enum class SaveOf : std::uint8_t { state, weights };

/// A save that has ended.
struct Saved {
  SaveOf what = SaveOf::state;
  std::int64_t step = 0;
  std::string line;     ///< for the log
  double seconds = 0;   ///< from its beginning until it was on the disk
  double stalled = 0;   ///< of which steps waited so long
  double in_steps = 0;  ///< and of that, what a step waited in itself
};

struct Save {
  /// The states of a save, in order. `next_state` has the transitions; a failure leads back to `none`.
  enum class State : std::uint8_t {
    none,     ///< no save is under way
    copying,  ///< the next step copies the state
    staging,  ///< each rank writes its shard to the node's disk, and steps wait
    shards,   ///< each rank writes its shard
    seals,    ///< the first rank of each shared file writes the file's head
    index     ///< rank 0 writes the index
  };

  /// The state that follows. A save starts again from `none` if `copying` has ended.
  State next_state() const;
  /// Whether the save can be repeated after a failure: the state that it saves is still there.
  bool can_repeat() const { return !staged || state == State::staging || last_of_run; }
  /// Whether it reads what a step has copied, or is to copy.
  bool reads_copies() const { return state != State::none && copied; }

  State state = State::none;
  std::int64_t step = 0, sample_cursor = 0;
  bool last_of_run = false;
  std::vector<io::CheckpointValue> values = {};
  bool copied = false;  ///< it reads the copy that a step has made
  double asked = 0;     ///< when it was asked for
  // Of what is saved now, the state or the weights.
  SaveOf what = SaveOf::state;
  bool staged = false;    ///< by way of the node's disk
  bool linked = false;    ///< constants are links to those of another save
  bool repeated = false;  ///< because its folder was moved away meanwhile
  double begin = 0, stalled = 0, in_steps = 0;
  io::CheckpointLayout layout = {};
  std::vector<io::ShardSlice> slices = {};     ///< of this rank's shard
  std::function<void()> write_constants = {};  ///< of this rank, what of them is left to write beside the steps
};

}  // namespace tessera
