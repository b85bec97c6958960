// tessera consolidate CHECKPOINT OUT
#include "exchange/consolidate.hpp"
#include "base/log.hpp"

#include <memory>

#include "base/clock.hpp"
#include "commands/commands.hpp"
#include "commands/named_checkpoint.hpp"
#include "topology/world.hpp"
#include "train/engine/program_identity.hpp"

namespace tessera {
namespace {

/// A rank waits for the others as long as their files take.
constexpr double longest_wait_seconds = 30 * 86400.0;

int consolidate_alone_or_with(const ConsolidateOptions& options, const World* world) {
  const double begin = now_seconds();
  const ConsolidateResult result = consolidate(options, world);
  if (world && world->rank() != 0) return 0;
  const double seconds = now_seconds() - begin;
  put("{}: {} tensors, {} in {:.2f} s ({}/s)\n", options.output, result.tensors, human_bytes(static_cast<double>(result.bytes)), seconds,
      human_bytes(static_cast<double>(result.bytes) / seconds));
  if (result.kept > 0) put("  an earlier start had finished {} of them\n", result.kept);
  for (const std::string& file : result.files) put("  {}\n", file);
  return 0;
}

int run(ConsolidateOptions options) {
  if (!launched_as_several()) {
    options.checkpoint = named_checkpoint(options.checkpoint);
    return consolidate_alone_or_with(options, nullptr);
  }
  const WorldOptions world{.collective_timeout_seconds = longest_wait_seconds, .identity = program_identity()};
  return run_in_world(world, [&](World& w) {
    std::string named;  // by one rank: a run that still trains may save meanwhile
    w.together([&] { named = w.rank() == 0 ? named_checkpoint(options.checkpoint) : ""; });
    options.checkpoint = w.broadcast_text(named);
    return consolidate_alone_or_with(options, &w);
  });
}

}  // namespace

void add_consolidate(const Command& app) {
  const Command command = app.command("consolidate", "Write a checkpoint's weights as one Hugging Face or HDF5 model");
  auto options = std::make_shared<ConsolidateOptions>();
  auto dtype = std::make_shared<std::string>("fp32");
  command.option("CHECKPOINT", options->checkpoint, checkpoint_help).required();
  command.option("OUT", options->output, "Folder to write; created if missing").required();
  command.option("--format", options->format, "safetensors (with config.json, for transformers) or hdf5")
      .one_of({"safetensors", "hdf5"})
      .shows_default();
  command.option("--dtype", *dtype, "fp32, bf16 or fp16").one_of({"fp32", "bf16", "fp16"}).shows_default();
  command.option("--max-file-bytes", options->max_file_bytes, "Largest safetensors file; larger models are split, with an index")
      .positive()
      .shows_default();
  command.option("--tensor", options->tensors,
                 "Only tensors that match this pattern (* any run of characters), by our names or the export's; may be repeated");
  command.flag("--adapter", options->adapter,
               "Write only the adapter of a run with [lora], as PEFT reads it; without it the adapter is merged into the model's weights");
  command.flag("--optimizer", options->optimizer,
               "With --format hdf5: also the optimizer's state, a group for each tensor (AdamW: /adam_m/NAME and /adam_v/NAME)");
  command.footer(
      "Example:\n  tessera consolidate runs/quickstart/checkpoints/latest out/\n  tessera consolidate runs/a/checkpoints/latest head/ "
      "--tensor 'head*' --format hdf5 --optimizer\n  mpiexec -n 4 tessera consolidate runs/a/checkpoints/latest out/\n\nIt needs one fixed "
      "buffer for any model size, and compares values with their checksums. Several ranks share the files of safetensors. After an "
      "interruption, give the same command again: it continues.");
  command.does([options, dtype] {
    options->dtype = float_type_of(*dtype).value();
    options->progress = true;
    return run(*options);
  });
}

}  // namespace tessera
