// Keys of the deck: checkpoints, evaluations, metrics.
#include "deck/schema/schema_rows.hpp"

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
      {KEY(checkpoint.keep_best), .type = boolean, .fallback = "false",
       .help = "An evaluation with the lowest validation loss so far saves a checkpoint. It stays until a better one comes, and "
               "RUN/checkpoints/best leads to it."},
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
      {KEY(evaluate.patience), .type = integer, .unit = "evaluations", .limits = {.least = 0, .most = 1e9}, .fallback = "0",
       .help = "The run saves and ends with status 0 after so many evaluations in a row without an improvement; 0: it never ends early."},
      {KEY(evaluate.min_improvement), .type = real, .unit = "nats a token", .limits = {.least = 0, .most = 1e6}, .fallback = "0.0",
       .help =
           "evaluate.patience counts a lower validation loss as an improvement if it is lower than that of the last improvement by more "
           "than this."},

      // [samples]
      {KEY(samples.every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
       .help = "Steps between texts that the model continues, in the log and in RUN/samples.jsonl; 0: none."},
      {KEY(samples.prompts), .type = texts, .fallback = "[]", .help = "What the texts begin with."},
      {KEY(samples.file), .type = text, .unit = "path", .fallback = "\"\"",
       .help = "A file of such prompts, one a line, after those of samples.prompts. Empty lines are left out."},
      {KEY(samples.tokens), .type = integer, .unit = "tokens", .limits = {.least = 2, .most = 1 << 20}, .fallback = "128",
       .help = "Tokens of a text, its prompt included."},
      {KEY(samples.temperature), .type = real, .limits = {.least = 0, .most = 1e6}, .fallback = "0.0",
       .help = "0 takes the likeliest token each time. Above 0 tokens are drawn, by run.seed and the step."},
      {KEY(samples.top_k), .type = integer, .unit = "tokens", .limits = {.least = 0, .most = max_dim}, .fallback = "0",
       .help = "They are drawn from so many of the likeliest tokens; 0: from all."},

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
               "run's own: that of a node exporter's textfile collector. Empty: none."},
      {KEY(metrics.wandb), .type = text, .unit = "project", .fallback = "\"\"",
       .help = "Sends the rows of metrics.jsonl to this project of Weights & Biases, by the Python package wandb and a process of its own. "
               "Steps never wait for it: rows that it has no room for are dropped and counted. Empty: nothing is sent."},
      {KEY(metrics.wandb_team), .type = text, .fallback = "\"\"",
       .help = "The team or user whose project it is (wandb's entity). Empty: the default of the account."},
      {KEY(metrics.wandb_group), .type = text, .fallback = "\"\"", .help = "The group of runs that this run belongs to. Empty: none."},
      {KEY(metrics.mlflow), .type = text, .unit = "experiment", .fallback = "\"\"",
       .help = "Sends the rows to this experiment of MLflow in the same way, by the Python package mlflow. Empty: nothing is sent."},
      {KEY(metrics.mlflow_uri), .type = text, .unit = "URI", .fallback = "\"\"",
       .help = "Where MLflow keeps its runs (its tracking URI). Empty: where MLFLOW_TRACKING_URI says, else MLflow's own default."}};
}

}  // namespace tessera::schema
