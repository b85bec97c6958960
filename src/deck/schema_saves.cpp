// Keys of the deck: checkpoints, evaluations, metrics.
#include "deck/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> saves_keys() {
  return {
      // [checkpoint]
      {KEY(checkpoint.every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
       .help = "Steps between checkpoints; 0: only after the last step and on a signal."},
      {KEY(checkpoint.keep), .type = integer, .unit = "checkpoints", .limits = {.least = 0, .most = 1e9}, .fallback = "2",
       .help = "Newest whole checkpoints of the run's line of descent that stay on disk; 0: all. With guards.spike = \"rollback\" those of "
               "steps that checkpoint.every does not divide stay beside them until the next."},
      {KEY(checkpoint.keep_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
       .help = "Checkpoints of steps that it divides stay for ever beside those; 0: none. A multiple of checkpoint.every."},
      {KEY(checkpoint.weights_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
       .help = "Steps between saves of the weights alone, a third of a checkpoint, in RUN/weights, where they stay; 0: none."},
      {KEY(checkpoint.async), .type = boolean, .fallback = "false",
       .help = "Saves are written from a copy of the state in the host's memory, made beside the next step and counted by the plan, while "
               "steps go on."},
      {KEY(checkpoint.files), .type = counted, .unit = "files", .limits = {.least = 1, .most = 1e6}, .choices = {"rank", "node"},
       .fallback = "\"rank\"",
       .help =
           "Shard files of a checkpoint: one for each rank, one for the ranks of a node, or so many in all (a rank has a file at most)."},
      {KEY(checkpoint.staging), .type = text, .unit = "path", .fallback = "\"\"",
       .help =
           "A folder on a disk of each node: a save goes there while the steps wait, and from there to run.output_dir while they go on."},
      {KEY(checkpoint.retries), .type = integer, .unit = "saves", .limits = {.least = 0, .most = 1e6}, .fallback = "3",
       .help = "A save that fails is tried again after the next step, so many times in a row, before it ends the run."},
      {KEY(checkpoint.verify_resume), .type = boolean, .fallback = "false",
       .help =
           "Loss and gradient norm of the two steps after each save, and a digest of the state after each, are kept beside it, and a run "
           "that goes on from there must have them bit "
           "for bit, at any layout that promises bits; a run makes two steps more after its last save. With run.reproducible."},
      {KEY(checkpoint.neighbour_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
       .help = "Steps between copies of each rank's state in the memory of its own node and of another one, made beside the steps: a start "
               "after a lost rank or node goes on from them and reads no disk; 0: none."},
      {KEY(checkpoint.neighbour_folder), .type = text, .unit = "path", .fallback = "\"/dev/shm\"",
       .help = "Where those copies lie: a folder in the memory of each node, which outlives the processes of a run."},
      {KEY(checkpoint.allow_same_node), .type = boolean, .fallback = "false",
       .help = "A rank's state may be copied to a rank of its own node, with which it would be lost: for trials on one machine."},

      // [evaluate]
      {KEY(evaluate.every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
       .help = "Steps between evaluations on data.validation; 0: none."},
      {KEY(evaluate.batches), .type = integer, .unit = "micro-batches", .limits = {.least = 1, .most = 1e9}, .fallback = "16",
       .help = "Micro-batches of one evaluation over all ranks, the same ones each time."},

      // [metrics]
      {KEY(metrics.csv), .type = boolean, .fallback = "false",
       .help = "Writes metrics.csv in the run's folder too: a line for each row of metrics.jsonl that has a number, and a column "
               "for each figure that is one number."},
      {KEY(metrics.tensorboard), .type = boolean, .fallback = "false",
       .help = "Writes tensorboard/ in the run's folder too: an event file that TensorBoard shows, of every number of metrics.jsonl."},
      {KEY(metrics.prometheus), .type = text, .unit = "address", .fallback = "\"\"",
       .help = "Where rank 0 serves the latest figures to Prometheus, at /metrics: \"PORT\" for the node's own programs alone, or "
               "\"HOST:PORT\", an IPv4 address of its own in numbers, localhost, or 0.0.0.0 for everybody; port 0 takes any free one, "
               "which the log and "
               "RUN/prometheus.json name. Empty: nowhere."},
      {KEY(metrics.prometheus_folder), .type = text, .unit = "path", .fallback = "\"\"",
       .help = "An existing folder, relative to the current directory, where rank 0 keeps a file of the latest figures, with a name of the "
               "run's own: that of a node exporter's textfile collector. Empty: none."}};
}

}  // namespace tessera::schema
