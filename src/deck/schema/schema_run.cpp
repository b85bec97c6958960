// Keys of the deck: run, and what is timed of it.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> run_keys() {
  return {
      // [run]
      {KEY(run.name), .type = text, .automatic = Auto::resolved,
       .help = "Name of the run. auto takes the file name of the deck without its extension."},
      {KEY(run.output_dir), .type = text, .unit = "path", .automatic = Auto::resolved,
       .help = "Folder for checkpoints and metrics, relative to the current directory. auto is runs/NAME."},
      {KEY(run.overwrite), .type = boolean,
       .help = "If the output folder holds the run of another deck, or if run.resume is never: moves that run to output_dir.old-N and "
               "starts a new one. false refuses such a start."},
      {KEY(run.resume), .type = text, .unit = "path", .automatic = Auto::kept,
       .help = "auto resumes from the latest checkpoint of the output folder, if there is one. never starts a new run. newest-good resumes "
               "from the newest checkpoint that passes verification. A path names a checkpoint: of another run, to start from it while the "
               "output folder has none; or of this run, to return to it once."},
      {KEY(run.init), .type = text, .unit = "path", .identity = true, .silent = true,
       .help = "Folder of a Hugging Face model, relative to the current directory. A new run starts from its weights; a resume does not "
               "read it again. Its config.json must match the deck's [model], which `tessera deck from-hf` prints. Empty: weights are "
               "drawn from run.seed."},
      {KEY(run.steps), .type = integer, .unit = "optimizer steps", .limits = {.least = 1, .most = 1e12}, .automatic = Auto::kept,
       .identity = true,
       .help = "Optimizer steps of the whole run. A resumed run continues to the same total. auto: the steps of run.epochs passes."},
      {KEY(run.epochs), .type = real, .unit = "passes over the data", .limits = {.least = 0, .most = 1e6}, .identity = true, .silent = true,
       .help = "Length of the run in passes, instead of run.steps. One pass is as many sequences as all files of data.train have together. "
               "In a mixture, weights decide how often each file is passed over. The last step is filled up. The start computes the steps, "
               "and the run's folder and checkpoints store them. 0: run.steps applies."},
      {KEY(run.seed), .type = integer, .limits = {.least = 0}, .identity = true,
       .help = "Seed of the initial weights and of the order of the data."},
      {KEY(run.reproducible), .type = boolean, .identity = true,
       .help = "Makes every sum exact. The same deck then gives the same bits on any number of ranks and at any ZeRO stage."},
      {KEY(run.device), .type = text, .automatic = Auto::kept,
       .help = "Device that holds the tensors and runs the kernels. cuda needs a build with CUDA. auto is cuda if the build has CUDA and "
               "the start finds a GPU, else host. tessera plan never looks for a GPU: auto plans for the host, cuda for a GPU."},
      {KEY(run.threads), .type = integer, .unit = "threads a rank", .limits = {.least = 0, .most = most_threads}, .automatic = Auto::kept,
       .help = "Compute threads of each rank. auto divides the cores of a node among its ranks."},
      {KEY(run.lanes), .type = text, .automatic = Auto::kept,
       .help = "threads runs each communication lane on its own thread, in parallel with compute. inline runs all tasks in order on one "
               "thread."},
      {KEY(run.log_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 1, .most = 1e12},
       .help = "Steps between two progress lines of the log. metrics.jsonl has every step."},
      {KEY(run.breakdown_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12},
       .help = "Steps between two measurements of time on rank 0; 0: none. A measurement covers forward, backward, optimizer, each kind of "
               "collective, copies and disks, exposed and hidden, with bytes per second. metrics.jsonl and the report page have each one. "
               "The log prints tables of means after measurements 1, 2, 4, 8 and so on, and at the end. A host times every step. A GPU "
               "times one step, which issues its tasks one by one, while other steps may be one CUDA graph."},
      {KEY(run.profile), .type = boolean,
       .help = "Times each host kernel in all steps except the first of a start. At the end rank 0 prints how far each kernel is from its "
               "roofline bound. The bound is FLOPs over the rate of a product, or bytes over the rate of a copy. It also writes "
               "profile.json into the output folder."},
      {KEY(run.trace), .type = counted, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12},
       .help = "Steps whose tasks are timed, numbered as in the log: one (12) or several (\"3..5\"); 0: none. Each rank writes "
               "trace/step-N/rank-R.json into the output folder. Rank 0 joins them on one clock in trace/steps-N-M.json and prints a "
               "table. Perfetto opens both; scripts/plot_run draws one rank. A GPU issues the tasks of such a step one by one, while other "
               "steps may be one CUDA graph. Times of tasks are close to those in the graph, but gaps between tasks are not."},
      {KEY(run.machine), .type = text, .unit = "path", .silent = true,
       .help = "Profile of the machine that the run uses (`tessera report --measure`, inputs/machines/*.toml). MFU is then a share of its "
               "peak. The joined file of run.trace also holds the step that the simulator predicts for rank 0. Empty: no prediction, and "
               "steps are compared with a product that is measured at the start."},
      {KEY(run.notify), .type = text, .unit = "command",
       .help = "Command for /bin/sh on rank 0's node. It is called when the run ends, stalls or rolls back, and gets one JSON object on "
               "standard input (docs/monitoring.md). A separate process calls it, so no step waits for it. Empty: none. The deck is stored "
               "with the run, so keep secrets in a file that the command reads."},
      {KEY(run.notify_limit), .type = duration, .unit = "time", .limits = {.least = 1, .most = 3600},
       .help = "Longest time that a call of run.notify may take before it is killed. The end of a run waits at most that long for its own "
               "call."}};
}

}  // namespace tessera::schema
