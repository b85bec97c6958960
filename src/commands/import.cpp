// tessera import DIR RUN
#include <fmt/format.h>

#include <memory>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/types.hpp"
#include "commands/commands.hpp"
#include "commands/one_process.hpp"
#include "exchange/import_model.hpp"

namespace tessera {
namespace {

int run_import(const ImportModelOptions& options) {
  const double begin = now_seconds();
  const ImportModelResult result = import_model(options);
  const double seconds = now_seconds() - begin;
  put("{} of {}: {} of weights in {:.2f} s ({}/s)\n", result.checkpoint, result.model, human_bytes(static_cast<double>(result.bytes)),
      seconds, human_bytes(static_cast<double>(result.bytes) / seconds));
  return 0;
}

}  // namespace

void add_import(const Command& app) {
  const Command command = app.command("import", "Make a checkpoint from a Hugging Face model, from Mistral's own layout, or from llm.c's");
  auto options = std::make_shared<ImportModelOptions>();
  command
      .option("DIR", options->model,
              "The model's folder, with config.json and safetensors or in Mistral's own layout; or a model in Hugging Face's cache, or its "
              "name ORG/NAME there; or a checkpoint of llm.c, FILE.bin")
      .required();
  command.option("RUN", options->run, "Folder to write: RUN/checkpoints/step-00000000, to which latest links; created if missing")
      .required();
  command.option("key=value", options->overrides, "Keys of the deck that the checkpoint stores, for example batch.sequence_length=2048");
  command.footer(
      "Example:\n  tessera import models/Llama-3.2-1B runs/base\n\nOne process with a fixed buffer imports any model size. The checkpoint "
      "holds only weights: evaluate, generate,\nconsolidate and inspect read it, and a run starts from it with "
      "run.resume=runs/base/checkpoints/latest. A run can also\nstart from the model itself, without an import: "
      "run.init=models/Llama-3.2-1B.");
  command.does([options] {
    require_one_process("import");
    options->progress = true;
    return run_import(*options);
  });
}

}  // namespace tessera
