#include "exchange/adapter_export.hpp"

#include <algorithm>
#include "base/json.hpp"

#include "base/check.hpp"
#include "deck/import/model_source.hpp"
#include "exchange/adapted_parts.hpp"
#include "exchange/elements.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"
#include "io/safetensors/safetensors.hpp"
#include "model/table/lora.hpp"

namespace tessera {
namespace {

constexpr const char* config_name = "adapter_config.json";
constexpr const char* weights_name = "adapter_model.safetensors";

void append(io::SafetensorsWriter& writer, const io::CheckpointReader& reader, const io::CheckpointTensor& tensor, DType dtype) {
  std::vector<float> values(static_cast<std::size_t>(io::hash_block));
  std::vector<std::byte> narrow;
  const std::int64_t elements = tensor.shape.elements();
  for (std::int64_t at = 0; at < elements; at += io::hash_block) {
    const std::span<float> chunk(values.data(), static_cast<std::size_t>(std::min(io::hash_block, elements - at)));
    reader.read("master", tensor, at, chunk);
    writer.append(elements_of(chunk, dtype, narrow));
  }
}

}  // namespace

std::string peft_config(const Deck& deck, const std::vector<Parameter>& table) {
  const LoraKeys& lora = deck.model.lora;
  Json c;
  c["base_model_name_or_path"] = deck.run.init;
  c["bias"] = "none";
  c["fan_in_fan_out"] = TensorNames(deck.model).name("layers.0.mlp.w_up").turned;
  c["inference_mode"] = true;
  c["init_lora_weights"] = true;
  c["lora_alpha"] = lora.alpha;
  c["lora_dropout"] = lora.dropout;
  const std::vector<std::string> whole = peft_modules_to_save(table);
  c["modules_to_save"] = whole.empty() ? Json(nullptr) : Json(whole);
  if (is_tied_whole(deck.model, table)) c["ensure_weight_tying"] = true;
  c["peft_type"] = "LORA";
  c["r"] = lora.rank;
  c["target_modules"] = peft_target_modules(table);
  c["task_type"] = "CAUSAL_LM";
  c["use_rslora"] = lora.scaling == LoraScaling::rslora;
  return c.dump(2) + "\n";
}

std::vector<std::string> adapter_files() { return {weights_name, config_name}; }

std::string adapter_fault(const Deck& deck, const std::vector<Parameter>& table, const std::string& kept) {
  const Family* began_with = nullptr;
  std::vector<Fault> ignored;  // an export needs its names alone
  if (!io::look_at(kept + "/config.json").nothing()) began_with = read_huggingface_folder(kept, ignored).family;
  return adapted_parts(table, began_with ? TensorNames(began_with) : TensorNames(deck.model));
}

void require_adapter(const io::CheckpointReader& reader, const Deck& deck, const std::vector<Parameter>& table, const std::string& kept) {
  if (deck.model.lora.rank == 0)
    fail(ExitCode::usage, "{} has no adapter: its deck has no [lora]. Leave --adapter out for the whole model.", reader.folder());
  if (const std::string parts = adapter_fault(deck, table, kept); !parts.empty())
    fail(ExitCode::usage, "--adapter: {}. Leave --adapter out: the adapter is then merged into the whole model.", parts);
}

std::int64_t export_adapter(const io::CheckpointReader& reader, const Deck& deck, const std::vector<Parameter>& table,
                            const std::string& folder, DType dtype) {
  std::vector<io::SafetensorsEntry> entries;
  std::vector<const Parameter*> rows;
  for (const Parameter& p : table)
    if (is_saved_with_adapter(p)) entries.push_back({peft_name(p), dtype, p.shape}), rows.push_back(&p);
  io::SafetensorsWriter writer(folder + "/" + weights_name, entries);
  std::int64_t bytes = 0;
  for (const Parameter* p : rows) {
    const io::CheckpointTensor* tensor = reader.find(p->name);
    if (!tensor) fail(ExitCode::checkpoint, "{} lacks tensor {}, which its own deck needs", reader.folder(), p->name);
    append(writer, reader, *tensor, dtype);
    bytes += p->shape.elements() * static_cast<std::int64_t>(size_of(dtype));
  }
  writer.finish();
  const std::string config = peft_config(deck, table);
  io::AtomicFile out(folder + "/" + config_name);
  out.file().write(0, config.data(), config.size());
  out.commit();
  return bytes;
}

}  // namespace tessera
