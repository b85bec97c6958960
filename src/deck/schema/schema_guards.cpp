// Keys of the deck: what a run does by itself about steps that are not as they should be.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> guard_keys() {
  return {
      // [guards]
      {KEY(guards.skip_limit), .type = integer, .unit = "steps", .limits = {.least = 0, .most = 1000},
       .help = "Most consecutive steps that may change no weights, because their loss or gradient is not finite or (with guards.spike) a "
               "spike. Their data counts as seen. One more ends the run. 0: the first step that is not finite ends it."},
      {KEY(guards.spike), .type = text,
       .help = "Reaction to a step whose loss or gradient norm is a spike. warn logs it. skip leaves the weights unchanged, at most "
               "guards.skip_limit times in a row. rollback returns to the checkpoint before the spike and continues with the data after "
               "it, so the data of the spike is left out."},
      {KEY(guards.threshold), .type = real, .limits = {.least = 1, .most = 1e6},
       .help = "Number of robust standard deviations above the median of recent steps that makes a spike. One is 1.4826 x the median "
               "distance to the median, at least a thousandth of the median."},
      {KEY(guards.window), .type = integer, .unit = "steps", .limits = {.least = 8, .most = 128},
       .help = "Number of recent steps with which losses and norms are compared. Spikes are detected only when half of them exist. Spikes "
               "that changed no weights are not added."},
      {KEY(guards.rollback_limit), .type = integer, .unit = "times", .limits = {.least = 1, .most = 1000},
       .help = "Most rollbacks that may happen before a checkpoint beyond the first rollback's step is saved. Each returns to an older "
               "checkpoint. One more ends the run."},
      {KEY(guards.digest_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12},
       .help = "Steps between comparisons of data that several ranks store identically: weights, and state that ZeRO does not shard. Each "
               "save compares too. If a copy differs, the run returns to the last checkpoint and repeats the same data. 0: never."},
      {KEY(guards.replay_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12},
       .help = "Steps between steps that are computed twice. Loss and gradient norm must have the same bits, or the run rolls back. Needs "
               "run.reproducible. 0: never."}};
}

}  // namespace tessera::schema
