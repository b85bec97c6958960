// tessera evaluate CHECKPOINT --data FILE
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include "base/json.hpp"

#include "base/clock.hpp"
#include "base/control_groups.hpp"
#include "base/log.hpp"
#include "base/progress.hpp"
#include "commands/commands.hpp"
#include "commands/evaluate_task.hpp"
#include "commands/named_checkpoint.hpp"
#include "commands/one_process.hpp"
#include "generate/inference.hpp"
#include "io/tokenizer/tokenizer.hpp"
#include "io/tokens/bin_layout.hpp"
#include "memory/runtime.hpp"
#include "train/data/batches.hpp"
#include "train/data/run_tokenizer.hpp"
#include "train/engine/device.hpp"

namespace tessera {
namespace {

struct EvaluateOptions {
  std::string checkpoint, data, bin_ids, task, details, device = "auto";
  TaskTokenizer tokenizer;
  std::int64_t samples = 0;
  bool json = false;
};

/// The largest micro-batch that divides the samples, so that each is seen once.
std::int64_t micro_batch_for(std::int64_t samples, std::int64_t largest) {
  while (samples % largest != 0) --largest;
  return largest;
}

int evaluate(const EvaluateOptions& o) {
  if (o.data.empty() == o.task.empty()) fail(ExitCode::usage, "give either a token file (--data) or a task (--task)");
  const RunDevice device = choose_device(from_word<RunDevice>(o.device).value());
  KernelRuntime runtime(usable_threads(), spaces_of(device));
  if (!o.task.empty())
    return evaluate_task(
        {.checkpoint = o.checkpoint, .task = o.task, .details = o.details, .device = device, .tokenizer = o.tokenizer, .json = o.json});
  Deck deck = load_deck(o.checkpoint, device);
  if (!o.bin_ids.empty()) deck.data.bin_ids = from_word<BinIds>(o.bin_ids).value();
  SampleFile data(o.data, deck.batch.sequence_length, deck.model.vocab, deck.data, deck.run.seed);
  require_tokenizer(find_tokenizer(Deck{}, "", o.checkpoint), data);
  data.check(nullptr);
  const std::int64_t samples = o.samples > 0 ? std::min(o.samples, data.samples()) : data.samples(), B = micro_batch_for(samples, 8),
                     T = deck.batch.sequence_length;
  LoadedModel model = load_model(o.checkpoint, device, {.micro_batch = B});
  const bool terminal = isatty(STDERR_FILENO);
  const double begin = now_seconds();
  if (model.engine->schedule().shape.rotation.by_longest) {
    std::int64_t longest = 1;
    for (std::int64_t sample = 0; sample < samples; ++sample) longest = std::max(longest, data.longest(sample));
    model.engine->turn_by(longest);
  }
  kernels::FixedSum sum;
  std::int64_t targets = 0;
  for (std::int64_t first = 0; first < samples; first += B) {
    for (std::int64_t row = 0; row < B; ++row)
      data.read(first + row, model.engine->positions(),
                {.tokens = model.engine->tokens(0),
                 .targets = model.engine->targets(0),
                 .document_starts = model.engine->document_starts(0),
                 .weights = model.engine->row_weights(0),
                 .padding = model.engine->padding(0)},
                row);
    model.engine->set_weight(0, 1);
    const StepReport report = model.engine->evaluate({.tokens = B * T});
    targets += report.targets;
    // The sum leaves out what is no number, so that it would say nothing.
    if (report.not_finite || !sum.add(report.loss_sum))
      fail(ExitCode::numerics, "the loss of the samples from {} on is not finite. Look at the model's weights: tessera inspect {}", first,
           o.checkpoint);
    const double share = static_cast<double>(first + B) / static_cast<double>(samples);
    if (terminal)
      std::fputs(
          fmt::format("\r\033[Kevaluate {:.0f} %, {} left", 100 * share, human_duration((now_seconds() - begin) * (1 - share) / share))
              .c_str(),
          stderr);
  }
  if (terminal) std::fputs("\r\033[K", stderr);
  if (targets == 0)
    fail(ExitCode::data, "{}: no token of its first {} samples counts in the loss. Evaluate more samples, or another file.", o.data,
         samples);
  const double loss = sum.value() / static_cast<double>(targets), perplexity = std::exp(loss),
               rate = static_cast<double>(samples * T) / (now_seconds() - begin);
  if (o.json)
    put("{}\n", Json{{"loss", loss},
                     {"perplexity", perplexity},
                     {"tokens", samples * T},
                     {"targets", targets},
                     {"step", model.step},
                     {"tokens_per_second", rate}}
                    .dump());
  else
    put("loss {:.6f} a token, perplexity {:.3f}, over {} tokens ({} samples of {}{}) at step {}; {} tokens/s\n", loss, perplexity, targets,
        samples, T, data.masked() ? ", of which the others do not count" : "", model.step, human_count(rate));
  return 0;
}

}  // namespace

void add_evaluate(const Command& app) {
  const Command command =
      app.command("evaluate", "Mean loss per token and perplexity of a checkpoint on a token file, or its score on a task of questions");
  auto options = std::make_shared<EvaluateOptions>();
  command.option("CHECKPOINT", options->checkpoint, checkpoint_help).required();
  const Option data = command.option("--data", options->data, "Token file: .h5 or .bin");
  command.option("--bin-ids", options->bin_ids, "For --data without a header: its data.bin_ids; by default the checkpoint's")
      .one_of({enum_words<BinIds>.begin(), enum_words<BinIds>.end()})
      .needs(data);
  const Option task = command
                          .option("--task", options->task,
                                  "JSON lines of {\"context\", \"choices\", \"answer\"}: the most likely choice is compared with answer, "
                                  "the number of the right one; or of {\"text\"}: measures how well the model predicts each document")
                          .excludes(data);
  command.option("--details", options->details, "File for the result of each line of the task, as JSON lines").needs(task);
  command
      .option("--tokenizer", options->tokenizer.folder,
              "Folder of the model whose tokenizer encodes the task's texts; by default the run's (RUN/tokenizer), or bytes")
      .needs(task);
  command.option("--chat-template", options->tokenizer.chat_template, "Template for \"messages\" instead of the run's: a name, or a file")
      .needs(task);
  add_worker_memory(command, options->tokenizer.memory, "the process of the task's tokenizer").needs(task);
  command.option("--samples", options->samples, "Only the first N samples of batch.sequence_length tokens; 0: all")
      .not_negative()
      .excludes(task)
      .shows_default();
  command.option("--device", options->device, "host, cuda, or auto: a GPU if this build has kernels for one and finds one")
      .one_of({enum_words<RunDevice>.begin(), enum_words<RunDevice>.end()})
      .shows_default();
  command.flag("--json", options->json, "Print one JSON object");
  command.footer(
      "Examples:\n  tessera evaluate runs/quickstart/checkpoints/latest --data data/val.h5\n  tessera evaluate "
      "runs/quickstart/checkpoints/latest "
      "--task questions.jsonl --details answers.jsonl");
  command.does([options] {
    require_one_process("evaluate");
    options->checkpoint = named_checkpoint(options->checkpoint);
    return evaluate(*options);
  });
}

}  // namespace tessera
