// tessera consolidate CHECKPOINT OUT
#include "train/consolidate.hpp"

#include <memory>

#include "base/clock.hpp"
#include "commands/commands.hpp"

namespace tessera {
namespace {

int run(const ConsolidateOptions& options) {
  const double begin = now_seconds();
  const ConsolidateResult result = consolidate(options);
  const double seconds = now_seconds() - begin;
  fmt::print("{}: {} tensors, {} in {:.2f} s ({}/s)\n", options.output, result.tensors, human_bytes(static_cast<double>(result.bytes)),
             seconds, human_bytes(static_cast<double>(result.bytes) / seconds));
  for (const std::string& file : result.files) fmt::print("  {}\n", file);
  return 0;
}

}  // namespace

void add_consolidate(CLI::App& app, Chosen& chosen) {
  CLI::App* command = app.add_subcommand("consolidate", "Write a checkpoint's weights as one Hugging Face or HDF5 model");
  auto options = std::make_shared<ConsolidateOptions>();
  auto dtype = std::make_shared<std::string>("fp32");
  command->add_option("CHECKPOINT", options->checkpoint, "Step folder, for example runs/quickstart/checkpoints/latest")->required();
  command->add_option("OUT", options->output, "Folder to write; made where it does not exist")->required();
  command->add_option("--format", options->format, "safetensors (with config.json, for transformers) or hdf5")
      ->check(CLI::IsMember({"safetensors", "hdf5"}))
      ->capture_default_str();
  command->add_option("--dtype", *dtype, "fp32 or bf16")->check(CLI::IsMember({"fp32", "bf16"}))->capture_default_str();
  command->add_option("--max-file-bytes", options->max_file_bytes, "Largest safetensors file; larger models are split, with an index")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--tensor", options->tensors,
                      "Only tensors of this pattern (* any run of characters), by our names or the export's; may be given again");
  command->add_flag("--adapter", options->adapter,
                    "The adapter of a run with [lora] alone, as PEFT reads it; without, the model has it in its weights");
  command->add_flag("--optimizer", options->optimizer, "With --format hdf5: the optimizer's moments too, as /adam_m/NAME and /adam_v/NAME");
  command->footer(
      "Example:\n  tessera consolidate runs/quickstart/checkpoints/latest out/\n  tessera consolidate runs/a/checkpoints/latest "
      "head/ --tensor 'head*' --format hdf5 --optimizer\n\nOne process, a fixed buffer, any model size; values are "
      "checked against their checksums.");
  command->callback([options, dtype, &chosen] {
    chosen = [options, dtype] {
      options->dtype = *dtype == "bf16" ? DType::bf16 : DType::f32;
      options->progress = true;
      return run(*options);
    };
  });
}

}  // namespace tessera
