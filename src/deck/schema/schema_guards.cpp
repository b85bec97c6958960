// Keys of the deck: what a run does by itself about steps that are not as they should be.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> guard_keys() {
  return {
      // [guards]
      {KEY(guards.skip_limit), .type = integer, .unit = "steps", .limits = {.least = 0, .most = 1000}, .fallback = "0",
       .help =
           "Steps in a row that may move nothing, since their loss or gradient is not finite or, with guards.spike, a spike: their data "
           "count as seen. One more ends the run. 0: the first step that is not finite ends it."},
      {KEY(guards.spike), .type = text, .fallback = "\"off\"",
       .help =
           "What is done about a step whose loss or gradient norm is a spike: warn says it; skip leaves weights as they were "
           "(guards.skip_limit in a row at most); rollback goes back to the checkpoint before it and on with the data after it, so that "
           "what it was made of is left out."},
      {KEY(guards.threshold), .type = real, .limits = {.least = 1, .most = 1e6}, .fallback = "6.0",
       .help = "A spike is so many robust standard deviations (1.4826 x the median distance to the median, at least a thousandth of the "
               "median) above the median of the steps before."},
      {KEY(guards.window), .type = integer, .unit = "steps", .limits = {.least = 8, .most = 128}, .fallback = "64",
       .help =
           "Steps whose losses and norms spikes are measured by; none is judged before half of them are there. Spikes that moved nothing "
           "do not join."},
      {KEY(guards.rollback_limit), .type = integer, .unit = "times", .limits = {.least = 1, .most = 1000}, .fallback = "3",
       .help = "Times that a run goes back without a checkpoint from beyond the step that it went back from, each time to an older one, "
               "before it ends."},
      {KEY(guards.digest_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
       .help = "Steps between comparisons of what several ranks keep the same copy of: weights, and state that ZeRO does not share out. "
               "They "
               "are compared before each save, too. A copy that differs makes the run go back to the checkpoint before, with the same "
               "data. 0: never."},
      {KEY(guards.replay_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
       .help = "Steps between steps that are computed twice: loss and gradient norm must have the same bits, or the run goes back. With "
               "run.reproducible. 0: never."}};
}

}  // namespace tessera::schema
