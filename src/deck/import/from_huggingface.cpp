// The deck of a run that begins from a model of Hugging Face.
#include <fmt/format.h>

#include <filesystem>

#include "deck/import/importer.hpp"
#include "deck/import/named_model.hpp"
#include "models/foreign_model.hpp"
#include "models/llmc_model.hpp"
#include "models/mistral_model.hpp"

namespace tessera {
namespace fs = std::filesystem;

ImportedDeck import_huggingface(const ImportRequest& asked) {
  ImportedDeck out;
  if (asked.path.empty()) return {"", {{"DIR", 0, 0, "", "is empty; give the folder of a model, or its config.json"}}};
  const NamedModel named = find_model(asked.path);
  if (!named.fault.empty()) return {"", {{asked.path, 0, 0, "", named.fault}}};
  ImportRequest request = asked;
  request.path = named.folder;
  const bool file = request.path.ends_with(".json");
  ModelSource source = file ? read_model(request.path, out.faults) : read_huggingface_folder(request.path, out.faults);
  if (!out.faults.empty()) return out;
  if (source.model.tied && !file && request.own_head && request.own_head(request.path)) take_own_head(source, request.path);
  Importer in(request, deepspeed_table(), request.path);
  in.put_model(source);
  if (source.own_head) in.assume("model.tied", "false", "the files have a separate head, whatever tie_word_embeddings says");
  if (source.context > 0 && source.model.rope_scaling != RopeMode::dynamic && source.model.learned_positions == 0)
    in.assume("model.max_context", fmt::format("{}", source.context), "what exports declare, as the model does");
  const fs::path folder(request.path);
  // What cannot be looked at, or is a link to nothing, is there for us: who reads it says why it cannot.
  const auto is_there = [&](const char* name) {
    std::error_code ignored;
    return fs::symlink_status(folder / name, ignored).type() != fs::file_type::not_found;
  };
  const bool llmc = is_llmc_model(request.path), mistral = is_mistral_model(request.path);
  const bool weights = llmc || mistral || (!file && (is_there("model.safetensors") || is_there("model.safetensors.index.json")));
  if (weights) in.assume("run.init", toml_string(request.path), "the run starts from these weights");
  put_tuning(in, source.context, source.model.vocab);
  in.assume("optimizer.weight_decay", "0.0", "of matrices only");
  in.assume("zero.stage", "3", "state, gradients and parameters are sharded over ranks; `tessera plan` shows the memory that this needs");
  ImportedDeck made =
      in.finish(fmt::format("Made of {} ({}), a {}, by `tessera deck from-hf`.", toml_string(request.path), source.architecture,
                            llmc      ? "checkpoint of llm.c"
                            : mistral ? "model in Mistral's own layout"
                                      : "model of Hugging Face"));
  made.notes = source.notes;
  if (!named.note.empty()) made.notes.push_back(named.note);
  if (const std::string foreign = file || weights ? "" : foreign_weights(request.path); !foreign.empty())
    made.notes.push_back(fmt::format("{}: run.init is left out.{}", request.path, foreign));
  return made;
}

}  // namespace tessera
