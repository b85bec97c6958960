// From files of DeepSpeed, of Accelerate and of the Trainer of Hugging Face, alone or together, to a deck.
#include <fmt/format.h>

#include "base/regular_file.hpp"
#include "deck/import/importer.hpp"

namespace tessera {
namespace {

constexpr std::int64_t most_configuration_bytes = 1 << 20;

struct Configuration {
  std::string path, text;
  JsonNode root;
  bool whole = false;  ///< it could be read to its end
};

Configuration read_text(const std::string& path, const std::string& text, std::vector<Fault>& faults) {
  Configuration read{.path = path, .text = text, .root = {}};
  read.whole = read_json(text, path, read.root, faults);
  return read;
}

Configuration read_file(const std::string& path, std::vector<Fault>& faults) {
  std::string text, why;
  if (path.ends_with(".yaml") || path.ends_with(".yml"))
    why = fmt::format(
        "this is YAML, but JSON is read: python3 -c 'import sys, yaml, json; json.dump(yaml.safe_load(sys.stdin), sys.stdout, indent=2)' < "
        "{} > {}.json converts it",
        path, path.substr(0, path.rfind('.')));
  if (why.empty() && read_regular(path, most_configuration_bytes, text, why)) return read_text(path, text, faults);
  faults.push_back({path, 0, 0, "", why});
  return {.path = path, .text = "", .root = {}};
}

ModelSource model_of(const ImportRequest& request, std::vector<Fault>& faults) {
  ModelSource model = read_model(request.model, faults);
  if (model.model.tied && request.own_head && request.own_head(request.model)) take_own_head(model, request.model);
  return model;
}

const ForeignTable& table_of(const JsonNode& root) { return is_of_accelerate(root) ? accelerate_table() : deepspeed_table(); }

/// All but what no such file holds.
void import_keys(Importer& in, const JsonNode& root, bool trainer) {
  in.walk(root);
  if (is_of_accelerate(root)) return import_accelerate_keys(in, trainer);
  import_batch(in, {.all = "train_batch_size", .micro = "train_micro_batch_size_per_gpu", .steps = "gradient_accumulation_steps"}, trainer);
  import_precision(in);
  import_optimizer(in);
  import_schedule(in, trainer);
  import_activation(in);
  import_offload_defaults(in);
  import_error_feedback(in);
}

ImportedDeck finished(Importer& in, const std::string& title, const ModelSource& model, std::vector<Fault> faults) {
  import_rest(in);
  const ImportedDeck made = in.finish(fmt::format("Made of {}, by `tessera deck import`.", title));
  faults.insert(faults.end(), made.faults.begin(), made.faults.end());
  return {.text = faults.empty() ? made.text : "", .faults = faults, .notes = model.notes};
}

std::string title_of(const std::string& path, const JsonNode& root) {
  return fmt::format("{}, a configuration of {}", toml_string(path), table_of(root).owner);
}

/// The configuration that the Trainer's arguments hold or name; nothing where there is none.
const JsonNode* deepspeed_of(Importer& trainer, const ImportRequest& request, Configuration& read, std::vector<Fault>& faults) {
  const JsonNode* said = trainer.given("deepspeed");
  if (request.path.empty() && said && said->kind == JsonNode::Kind::object) return said->children.empty() ? nullptr : said;
  const std::string path = !request.path.empty() ? request.path : said ? said->written : "";
  if (path.empty()) return nullptr;
  read = read_file(path, faults);
  if (!read.whole && request.path.empty()) trainer.fault("deepspeed", fmt::format("{} makes no configuration", toml_string(path)));
  return read.whole ? &read.root : nullptr;
}

}  // namespace

ImportedDeck import_deepspeed_text(const std::string& text, const ImportRequest& request) {
  ImportedDeck out;
  const Configuration file = read_text(request.path, text, out.faults);
  const ModelSource model = model_of(request, out.faults);
  if (!file.whole) return out;
  Importer in(request, table_of(file.root), file.path);
  in.put_model(model);
  import_keys(in, file.root, false);
  return finished(in, title_of(file.path, file.root), model, out.faults);
}

ImportedDeck import_trainer_text(const std::string& text, const ImportRequest& request) {
  ImportedDeck out;
  const Configuration file = read_text(request.trainer, text, out.faults);
  const ModelSource model = model_of(request, out.faults);
  if (!file.whole) return out;
  if (is_of_accelerate(file.root)) {
    out.faults.push_back(
        {file.path, 0, 0, "",
         fmt::format("this is a configuration of Accelerate, not the Trainer's arguments: tessera deck import {}, with --trainer for those",
                     file.path)});
    return out;
  }
  const std::string title = fmt::format("{}, arguments of the Trainer of Hugging Face", toml_string(file.path));
  Importer trainer(request, trainer_table(), file.path);
  trainer.put_model(model);
  trainer.walk(file.root);
  import_trainer_keys(trainer);
  Configuration read{.path = file.path, .text = "", .root = {}};
  const JsonNode* deepspeed = deepspeed_of(trainer, request, read, out.faults);
  if (!deepspeed) return finished(trainer, title, model, out.faults);
  Importer in(request, table_of(*deepspeed), read.path);
  in.put_model(model);
  import_keys(in, *deepspeed, true);
  in.fill_from(trainer);
  return finished(in, fmt::format("{}, and {}", title_of(read.path, *deepspeed), title), model, out.faults);
}

ImportedDeck import_configuration(const ImportRequest& request) {
  const std::string& path = request.trainer.empty() ? request.path : request.trainer;
  std::vector<Fault> faults;
  const Configuration file = read_file(path, faults);
  if (file.text.empty() && !faults.empty()) return {"", faults};
  return request.trainer.empty() ? import_deepspeed_text(file.text, request) : import_trainer_text(file.text, request);
}

}  // namespace tessera
