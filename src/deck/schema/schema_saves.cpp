// Keys of the deck: checkpoints, evaluations, metrics.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> checkpoint_keys() {
  return {
      // [checkpoint]
      {KEY(checkpoint.every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12},
       .help = "Steps between checkpoints; 0: only after the last step and on a signal."},
      {KEY(checkpoint.keep), .type = integer, .unit = "checkpoints", .limits = {.least = 0, .most = 1e9},
       .help = "Number of newest complete checkpoints in the run's lineage that stay on disk; 0: all. With guards.spike = \"rollback\", "
               "checkpoints of steps that checkpoint.every does not divide stay too, until the next one."},
      {KEY(checkpoint.keep_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12},
       .help = "Checkpoints of steps that this divides also stay, forever; 0: none. A multiple of checkpoint.every."},
      {KEY(checkpoint.keep_best), .type = boolean,
       .help = "Saves a checkpoint after an evaluation with the lowest validation loss so far. It stays until a better one, and "
               "RUN/checkpoints/best links to it."},
      {KEY(checkpoint.weights_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12},
       .help = "Steps between saves of the weights alone, a third of a checkpoint, in RUN/weights, where they stay; 0: none."},
      {KEY(checkpoint.async), .type = boolean,
       .help = "Saves write a copy of the state while steps continue. The copy is made in host memory during the next step, and the plan "
               "counts it."},
      {KEY(checkpoint.files), .type = counted, .unit = "files", .limits = {.least = 1, .most = 1e6}, .choices = {"rank", "node"},
       .help = "Shard files of a checkpoint. Either one for each rank, or one for the ranks of a node, or a total number (at most one file "
               "for each rank)."},
      {KEY(checkpoint.staging), .type = text, .unit = "path",
       .help = "Folder on a disk of each node. A save is first written there while the steps wait. It is then copied to run.output_dir "
               "while they continue."},
      {KEY(checkpoint.retries), .type = integer, .unit = "saves", .limits = {.least = 0, .most = 1e6},
       .help = "Times in a row that a failed save is tried again, after the next step, before it ends the run."},
      {KEY(checkpoint.verify_resume), .type = boolean,
       .help = "Stores with each save a digest of the state, and loss, gradient norm and digest after each of the next two steps. A run "
               "that resumes there must reproduce them bit for bit, on any layout that promises equal bits. A run makes two more steps "
               "after its last save. Needs run.reproducible."},
      {KEY(checkpoint.neighbour_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12},
       .help = "Steps between copies of each rank's state in the memory of its own node and of another node, made while steps continue. A "
               "start after a lost rank or node resumes from them without reading a disk; 0: none."},
      {KEY(checkpoint.neighbour_folder), .type = text, .unit = "path",
       .help = "Folder for those copies in the memory of each node. It outlives the processes of a run."},
      {KEY(checkpoint.allow_same_node), .type = boolean,
       .help = "Allows a rank's state to be copied to a rank on the same node, with which it would be lost: for trials on one machine."}};
}

std::vector<Key> evaluate_keys() {
  return {
      // [evaluate]
      {KEY(evaluate.every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12},
       .help = "Steps between evaluations on data.validation; 0: none."},
      {KEY(evaluate.batches), .type = integer, .unit = "micro-batches", .limits = {.least = 1, .most = 1e9},
       .help = "Micro-batches of one evaluation over all ranks; every evaluation uses the same ones."},
      {KEY(evaluate.patience), .type = integer, .unit = "evaluations", .limits = {.least = 0, .most = 1e9},
       .help = "The run saves and ends with status 0 after this many evaluations in a row without an improvement; 0: it never ends early."},
      {KEY(evaluate.min_improvement), .type = real, .unit = "nats a token", .limits = {.least = 0, .most = 1e6},
       .help = "evaluate.patience counts a lower validation loss as an improvement only if it is below the last improvement's by more than "
               "this."}};
}

std::vector<Key> samples_keys() {
  return {// [samples]
          {KEY(samples.every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12},
           .help = "Steps between samples, which are texts that the model continues, in the log and in RUN/samples.jsonl; 0: none."},
          {KEY(samples.prompts), .type = texts, .help = "Texts that the model continues."},
          {KEY(samples.file), .type = text, .unit = "path",
           .help = "File of more prompts, one a line, after those of samples.prompts. Empty lines are skipped."},
          {KEY(samples.tokens), .type = integer, .unit = "tokens", .limits = {.least = 2, .most = 1 << 20},
           .help = "Tokens of a text, including its prompt."},
          {KEY(samples.temperature), .type = real, .limits = {.least = 0, .most = 1e6},
           .help = "0 takes the most likely token each time. Above 0 tokens are drawn at random from run.seed and the step."},
          {KEY(samples.top_k), .type = integer, .unit = "tokens", .limits = {.least = 0, .most = max_dim},
           .help = "Tokens are drawn from this many of the most likely ones; 0: from all."}};
}

std::vector<Key> metrics_keys() {
  return {
      // [metrics]
      {KEY(metrics.csv), .type = boolean,
       .help = "Also writes metrics.csv into the run's folder. It has a line for each row of metrics.jsonl that has a number, and a column "
               "for each figure that is one number."},
      {KEY(metrics.tensorboard), .type = boolean,
       .help = "Also writes tensorboard/ into the run's folder: an event file for TensorBoard with every number of metrics.jsonl."},
      {KEY(metrics.prometheus), .type = text, .unit = "address",
       .help = "Address where rank 0 serves the latest figures to Prometheus, at /metrics. \"PORT\" serves only programs of the same node. "
               "\"HOST:PORT\" takes one of the node's IPv4 addresses in numbers, localhost, or 0.0.0.0 for everybody. Port 0 takes any "
               "free one, which the log and RUN/prometheus.json name. Empty: none."},
      {KEY(metrics.prometheus_folder), .type = text, .unit = "path",
       .help = "Existing folder, relative to the current directory, for a node exporter's textfile collector. Rank 0 keeps the latest "
               "figures there in a file whose name belongs to this run. Empty: none."},
      {KEY(metrics.wandb), .type = text, .unit = "project",
       .help = "Sends the rows of metrics.jsonl to this project of Weights & Biases, with the Python package wandb in a separate process. "
               "Steps never wait for it: if its queue is full, rows are dropped and counted. Empty: nothing is sent."},
      {KEY(metrics.wandb_team), .type = text,
       .help = "Team or user that owns the project (wandb's entity). Empty: the default of the account."},
      {KEY(metrics.wandb_group), .type = text, .help = "Group of runs that this run belongs to. Empty: none."},
      {KEY(metrics.mlflow), .type = text, .unit = "experiment",
       .help = "Sends the rows to this experiment of MLflow in the same way, with the Python package mlflow. Empty: nothing is sent."},
      {KEY(metrics.mlflow_uri), .type = text, .unit = "URI",
       .help = "Address where MLflow keeps its runs (its tracking URI). Empty: MLFLOW_TRACKING_URI, or else MLflow's own default."}};
}

}  // namespace tessera::schema
