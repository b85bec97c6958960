#include "deck/import/model_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/regular_file.hpp"
#include "deck/schema/hints.hpp"
#include "deck/schema/traits.hpp"
#include "deck/schema/value.hpp"
#include "families/family.hpp"
#include "families/mistral_params.hpp"
#include "models/foreign_model.hpp"
#include "models/llmc_model.hpp"
#include "models/mistral_model.hpp"
#include "models/model_folder.hpp"

namespace tessera {
namespace {

constexpr std::int64_t most_file_bytes = 1 << 20;

/// A model whose shape is public.
struct Preset {
  std::string_view name, card;  ///< the card's config.json is where the numbers stand
  std::int64_t context;
  ModelKeys model;
};

/// As Llama 3.1 and 3.2 stretch the rotation.
ModelKeys stretched(ModelKeys m, double factor) {
  m.rope_scaling = RopeMode::llama3, m.rope_factor = factor;
  m.rope_low_freq_factor = 1, m.rope_high_freq_factor = 4, m.rope_original_context = 8192;
  return m;
}

ModelKeys llama(std::int64_t layers, std::int64_t width, std::int64_t heads, std::int64_t kv_heads, std::int64_t ff_width,
                std::int64_t vocab, double theta) {
  return {.layers = layers,
          .width = width,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = width / heads,
          .ff_width = ff_width,
          .vocab = vocab,
          .norm_eps = 1e-5,
          .rope_theta = theta,
          .rope_scaling = RopeMode::none};
}

ModelKeys tied(ModelKeys m) {
  m.tied = true;
  return m;
}

ModelKeys qwen2(ModelKeys m, double eps) {
  m.qkv_bias = true, m.norm_eps = eps;
  return m;
}

ModelKeys qwen3(ModelKeys m, std::int64_t head_dim) {
  m.qk_norm = true, m.norm_eps = 1e-6, m.head_dim = head_dim;
  return m;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> table = {
      // name, card, context, (layers, width, heads, kv_heads, ff_width, vocab, rope_theta)
      {"llama2-7b", "meta-llama/Llama-2-7b-hf", 4096, llama(32, 4096, 32, 32, 11008, 32000, 1e4)},
      {"llama2-13b", "meta-llama/Llama-2-13b-hf", 4096, llama(40, 5120, 40, 40, 13824, 32000, 1e4)},
      {"llama2-70b", "meta-llama/Llama-2-70b-hf", 4096, llama(80, 8192, 64, 8, 28672, 32000, 1e4)},
      {"llama3-8b", "meta-llama/Meta-Llama-3-8B", 8192, llama(32, 4096, 32, 8, 14336, 128256, 5e5)},
      {"llama3-70b", "meta-llama/Meta-Llama-3-70B", 8192, llama(80, 8192, 64, 8, 28672, 128256, 5e5)},
      {"llama3.1-8b", "meta-llama/Llama-3.1-8B", 131072, stretched(llama(32, 4096, 32, 8, 14336, 128256, 5e5), 8)},
      {"llama3.1-70b", "meta-llama/Llama-3.1-70B", 131072, stretched(llama(80, 8192, 64, 8, 28672, 128256, 5e5), 8)},
      {"llama3.1-405b", "meta-llama/Llama-3.1-405B", 131072, stretched(llama(126, 16384, 128, 8, 53248, 128256, 5e5), 8)},
      {"llama3.2-1b", "meta-llama/Llama-3.2-1B", 131072, tied(stretched(llama(16, 2048, 32, 8, 8192, 128256, 5e5), 32))},
      {"llama3.2-3b", "meta-llama/Llama-3.2-3B", 131072, tied(stretched(llama(28, 3072, 24, 8, 8192, 128256, 5e5), 32))},
      {"mistral-7b", "mistralai/Mistral-7B-v0.3", 32768, llama(32, 4096, 32, 8, 14336, 32768, 1e6)},  // the one without a window
      {"qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B", 32768, tied(qwen2(llama(24, 896, 14, 2, 4864, 151936, 1e6), 1e-6))},
      {"qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B", 131072, tied(qwen2(llama(28, 1536, 12, 2, 8960, 151936, 1e6), 1e-6))},
      {"qwen2.5-7b", "Qwen/Qwen2.5-7B", 131072, qwen2(llama(28, 3584, 28, 4, 18944, 152064, 1e6), 1e-6)},
      {"qwen2.5-14b", "Qwen/Qwen2.5-14B", 131072, qwen2(llama(48, 5120, 40, 8, 13824, 152064, 1e6), 1e-5)},
      {"qwen2.5-32b", "Qwen/Qwen2.5-32B", 131072, qwen2(llama(64, 5120, 40, 8, 27648, 152064, 1e6), 1e-5)},
      {"qwen2.5-72b", "Qwen/Qwen2.5-72B", 131072, qwen2(llama(80, 8192, 64, 8, 29568, 152064, 1e6), 1e-5)},
      {"qwen3-0.6b", "Qwen/Qwen3-0.6B", 40960, tied(qwen3(llama(28, 1024, 16, 8, 3072, 151936, 1e6), 128))},
      {"qwen3-8b", "Qwen/Qwen3-8B", 40960, qwen3(llama(36, 4096, 32, 8, 12288, 151936, 1e6), 128)},
      {"qwen3-32b", "Qwen/Qwen3-32B", 40960, qwen3(llama(64, 5120, 64, 8, 25600, 151936, 1e6), 128)},
  };
  return table;
}

/// Only what a deck says of its model matters, so the others of its keys may be missing.
ModelSource read_deck_model(const std::string& path, std::vector<Fault>& faults) {
  const ParsedDeck parsed = parse_deck(path, {}, 0);
  for (const Fault& fault : parsed.faults)
    if (fault.key.empty() || fault.key == "model" || fault.key.starts_with("model.")) faults.push_back(fault);
  return {parsed.deck.model, parsed.deck.batch.sequence_length, fmt::format("the [model] of {}", toml_string(path))};
}

ModelSource read_config_file(const std::string& path, std::vector<Fault>& faults) {
  std::string text, why;
  if (!read_regular(path, most_file_bytes, text, why)) {
    const std::string folder = std::filesystem::path(path).parent_path().string(), instead = instead_of_model(folder);
    faults.push_back({path, 0, 0, "", why + (instead.empty() ? foreign_weights(folder) : instead)});
    return {};
  }
  return read_huggingface_config(text, path, faults);
}

ModelSource read_params_file(const std::string& path, std::vector<Fault>& faults) {
  std::string text, why;
  if (read_regular(path, most_file_bytes, text, why)) return read_mistral_params(text, path, faults);
  faults.push_back({path, 0, 0, "", why});
  return {};
}

ModelSource read_llmc(const std::string& path, std::vector<Fault>& faults) {
  std::string fault;
  const LlmcModel file = read_llmc_model(path, fault);
  if (!fault.empty()) {
    faults.push_back({path, 0, 0, "", fault});
    return {};
  }
  ModelKeys m = llmc_family().standard;
  m.layers = file.layers, m.width = file.width, m.heads = m.kv_heads = file.heads, m.head_dim = file.width / file.heads;
  m.ff_width = 4 * file.width, m.vocab = file.vocab, m.learned_positions = file.context;
  return {.model = m,
          .context = file.context,
          .from = fmt::format("llm.c, {}", toml_string(path)),
          .architecture = std::string(llmc_family().architecture),
          .family = &llmc_family()};
}

std::string words_of_layers(const ModelKeys& m) {
  const std::string text = describe_layers(m);
  return text.empty() ? "all see all tokens" : text;
}

}  // namespace

ModelSource read_huggingface_folder(const std::string& folder, std::vector<Fault>& faults) {
  if (is_llmc_model(folder)) return read_llmc(folder, faults);
  if (is_mistral_model(folder)) return read_params_file((std::filesystem::path(folder) / "params.json").string(), faults);
  return read_config_file((std::filesystem::path(folder) / "config.json").string(), faults);
}

void take_own_head(ModelSource& source, const std::string& folder) {
  source.model.tied = false, source.own_head = true;
  source.notes.push_back(
      fmt::format("{}: lm_head.weight differs from the embedding, so it is the model's head (model.tied = false), as in transformers, "
                  "whatever tie_word_embeddings of config.json says",
                  folder));
}

std::vector<std::string> model_differences(const ModelKeys& deck, const ModelSource& theirs) {
  std::vector<std::string> differences;
  for (const auto& [key, mine, other] : differing_traits(deck, theirs.model))
    if (key->name == "model.tied" && theirs.own_head)
      differences.push_back(fmt::format("{} = {}, but lm_head.weight of its files differs from the embedding", key->name, mine));
    else
      differences.push_back(fmt::format("{} = {}, but {} is {}", key->name, mine, key->theirs, other));
  // Biases that begin at zero may join a model without them.
  if (theirs.model.router_balance == RouterBalance::bias && deck.router_balance != RouterBalance::bias)
    differences.emplace_back("model.router_balance = \"loss\", but its files have biases for choosing experts");
  if (const std::string mine = describe_dense(deck), other = describe_dense(theirs.model);
      deck.experts > 0 && theirs.model.experts > 0 && deck.layers == theirs.model.layers && mine != other)
    differences.push_back(fmt::format("layers without experts (model.dense_layers, model.kinds): {}; but its files have: {}", mine, other));
  if (deck.layers == theirs.model.layers && attention_of_layers(deck) != attention_of_layers(theirs.model))
    differences.push_back(fmt::format("layers (model.window, model.positions, model.pattern): {}; but its files have: {}",
                                      words_of_layers(deck), words_of_layers(theirs.model)));
  return differences;
}

std::string known_models() {
  std::string all;
  for (const Preset& p : presets()) all += fmt::format("{}{}", all.empty() ? "" : ", ", p.name);
  return all;
}

ModelSource read_model(const std::string& name, std::vector<Fault>& faults) {
  if (name.ends_with(".toml")) return read_deck_model(name, faults);
  if (name.ends_with(".json")) return read_config_file(name, faults);
  std::vector<std::string_view> names;
  for (const Preset& p : presets()) {
    if (p.name == name) return {p.model, p.context, fmt::format("{}, as in config.json of https://huggingface.co/{}", p.name, p.card)};
    names.push_back(p.name);
  }
  std::error_code ignored;  // what cannot be looked at is no folder
  if (std::filesystem::is_directory(name, ignored)) return read_huggingface_folder(name, faults);
  const std::string_view near = nearest(name, names);
  std::string message = fmt::format("{} is not a known model; ", toml_string(shortened(name)));
  if (!near.empty()) message += fmt::format("did you mean {}? ", near);
  message += fmt::format("They are {}; or give a deck (FILE.toml) with a [model], or a config.json of Hugging Face, or its folder",
                         known_models());
  if (const std::string instead = instead_of_model(name); !instead.empty()) message += "." + instead;
  faults.push_back({"--model", 0, 0, "", message});
  return {};
}

}  // namespace tessera
