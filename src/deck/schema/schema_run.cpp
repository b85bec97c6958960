// Keys of the deck: run, and what is timed of it.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> run_keys() {
  return {
      // [run]
      {KEY(run.name), .type = text, .fallback = "\"auto\"", .automatic = Auto::resolved,
       .help = "Name of the run; auto takes the file name of the deck without its extension."},
      {KEY(run.output_dir), .type = text, .unit = "path", .fallback = "\"auto\"", .automatic = Auto::resolved,
       .help = "Folder for checkpoints and metrics, relative to the current directory; auto is runs/NAME."},
      {KEY(run.overwrite), .type = boolean, .fallback = "false",
       .help = "Where the output folder holds the run of another deck, or run.resume is never: moves that run aside (output_dir.old-N) and "
               "starts anew."},
      {KEY(run.resume), .type = text, .unit = "path", .fallback = "\"auto\"", .automatic = Auto::kept,
       .help =
           "auto goes on from the latest checkpoint of the output folder if there is one; never starts anew; newest-good goes on from "
           "the newest "
           "checkpoint that verifies; a path names a checkpoint to begin from while the output folder has none, or one of its own to go "
           "back to, "
           "once."},
      {KEY(run.init), .type = text, .unit = "path", .fallback = "\"\"", .identity = true, .silent = true,
       .help =
           "Folder of a Hugging Face model, relative to the current directory, whose weights a run begins with where it has no checkpoint "
           "to go on from; empty: weights are drawn from run.seed. Its config.json must say the deck's [model] (`tessera deck from-hf` "
           "prints that); it is not read again on a resume."},
      {KEY(run.steps), .type = integer, .unit = "optimizer steps", .limits = {.least = 1, .most = 1e12}, .fallback = "\"auto\"",
       .automatic = Auto::kept, .identity = true,
       .help =
           "Optimizer steps of the whole run; a resumed run goes on to the same total. auto, where run.epochs is given: those of so many "
           "passes."},
      {KEY(run.epochs), .type = real, .unit = "passes over the data", .limits = {.least = 0, .most = 1e6}, .fallback = "0.0",
       .identity = true, .silent = true,
       .help = "In the place of run.steps: so many passes. One pass is as many sequences as all files of data.train have together, so in a "
               "mixture a file may be passed over more or less often, by its weight; the last step is filled up. A start counts them, and "
               "the run's folder and its checkpoints hold the steps in their place; 0: run.steps says it."},
      {KEY(run.seed), .type = integer, .limits = {.least = 0}, .fallback = "1", .identity = true,
       .help = "Seed of the initial weights and of the order of the data."},
      {KEY(run.reproducible), .type = boolean, .fallback = "false", .identity = true,
       .help = "Makes every sum exact, so that the same deck gives the same bits on any number of ranks and at any ZeRO stage."},
      {KEY(run.device), .type = text, .fallback = "\"auto\"", .automatic = Auto::kept,
       .help =
           "Where tensors live and kernels run; a run with cuda needs a build with CUDA. auto takes cuda when a run of such a "
           "build starts and sees a GPU, else host. tessera plan looks for no GPU, in any build: auto plans for the host, cuda for a GPU."},
      {KEY(run.threads), .type = integer, .unit = "threads a rank", .limits = {.least = 0, .most = most_threads}, .fallback = "\"auto\"",
       .automatic = Auto::kept, .help = "Compute threads of each rank; auto shares the cores of a node among its ranks."},
      {KEY(run.lanes), .type = text, .fallback = "\"auto\"", .automatic = Auto::kept,
       .help = "threads runs communication lanes on threads of their own beside compute; inline runs every task in order on one thread."},
      {KEY(run.log_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 1, .most = 1e12}, .fallback = "1",
       .help = "Steps between two progress lines; metrics.jsonl holds every step."},
      {KEY(run.breakdown_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
       .help =
           "Steps between two measurements of where the time goes on rank 0: forward, backward, optimizer, each kind of collective, "
           "copies, "
           "disks, exposed and hidden, with bytes a second; 0: none. metrics.jsonl and the report page have each. The log prints tables of "
           "means: after the first measurement, after the second, the fourth, the eighth and so on, and at the end. On the host every step "
           "is timed. On a GPU one step is, which issues its tasks one by one where others may be one CUDA graph."},
      {KEY(run.profile), .type = boolean, .fallback = "false",
       .help = "Times each kernel of the host in all steps but the first of a start: at the end rank 0 prints how far which is from its "
               "floor, its FLOPs over a product's rate or its bytes over a copy's, and writes profile.json into the output folder."},
      {KEY(run.trace), .type = counted, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
       .help =
           "Steps whose tasks are timed, as the log counts steps: one, 12, or several, \"3..5\". Each rank writes trace/step-N/rank-R.json "
           "into "
           "the output folder, and rank 0 joins all of them in trace/steps-N-M.json, on one clock, and prints a table; Perfetto opens "
           "both, "
           "scripts/plot_run draws one rank; 0: none. On a GPU such a step issues its tasks one by one, where others may be one CUDA "
           "graph: "
           "times of tasks are close to those in the graph, gaps between them are not."},
      {KEY(run.machine), .type = text, .unit = "path", .fallback = "\"\"", .silent = true,
       .help =
           "Machine profile (`tessera report --measure`, inputs/machines/*.toml) of what the run runs on. MFU is a share of its peak, and "
           "the joined file of run.trace holds the step that the simulator predicts for rank 0 beside those that were measured. Empty: "
           "no prediction, and steps are compared with a product that is measured at the start."},
      {KEY(run.notify), .type = text, .unit = "command", .fallback = "\"\"",
       .help =
           "A command for /bin/sh on rank 0's node: it is called when the run ends, stalls or goes back. Its standard input is one JSON "
           "object (docs/monitoring.md). A process of its own calls it, so that no step waits. Empty: none. The deck is stored with the "
           "run, so keep secrets in a file that the command reads."},
      {KEY(run.notify_limit), .type = duration, .unit = "time", .limits = {.least = 1, .most = 3600}, .fallback = "\"10 s\"",
       .help = "How long a call of run.notify may take before it is ended. The end of a run waits no longer for its own call."}};
}

}  // namespace tessera::schema
