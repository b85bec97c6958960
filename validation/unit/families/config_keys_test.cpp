// What each key of config.json comes to in a family, which its card says (docs/families): found by reading files that say other values of
// it, not by hand. With TESSERA_WRITE_CARDS in the environment the cards are written.
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "../scratch.hpp"
#include "families/family.hpp"
#include "families/known_keys.hpp"
#include "families/read_config.hpp"
#include "families/write_config.hpp"

namespace tessera::config_keys_test {
namespace {

namespace fs = std::filesystem;

enum class Effect { used, limited, named, none, carried, unknown };

/// What comes of a file.
struct Reading {
  ModelSource source;
  std::vector<Fault> faults;
  bool knows(const std::string& key) const {
    return std::ranges::none_of(faults, [&](const Fault& f) { return f.key == key && f.message.starts_with("is not a known key of"); });
  }
};
Reading read(const Json& config) {
  Reading reading;
  reading.source = read_huggingface_config(config.dump(), "config.json", reading.faults);
  return reading;
}

/// Every name that the readers of families write down.
std::set<std::string> names() {
  std::set<std::string> all;
  const std::regex text("\"([a-z_][a-z0-9_.]*)\"");
  for (const auto& entry : fs::directory_iterator(TESSERA_FAMILIES)) {
    const std::string code = test::slurp(entry.path().string());
    for (std::sregex_iterator one(code.begin(), code.end(), text), end; one != end; ++one) all.insert((*one)[1]);
  }
  all.erase("model_type");
  return all;
}

ModelKeys small_model(const Family& family) {
  ModelKeys m = family.standard;
  m.layers = 4, m.width = 32, m.heads = m.kv_heads = 4, m.head_dim = 8, m.ff_width = 48, m.vocab = 64, m.max_context = 0;
  if (m.learned_positions > 0) m.learned_positions = 64;
  const TraitField experts = &ModelKeys::experts;
  if (std::ranges::find(family.keys, experts, &FamilyKey::field) == family.keys.end()) return m;
  m.experts = 4, m.experts_per_token = 2, m.expert_ff_width = 24;
  if (m.shared_ff_width > 0) m.shared_ff_width = 48;
  return m;
}

const Json linear = {{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 100.0}};
/// Of the 4 pairs of a head's 8 features.
const Json longrope = {
    {"rope_type", "longrope"}, {"rope_theta", 100.0}, {"short_factor", {1.0, 1.5, 2.0, 2.5}}, {"long_factor", {1.0, 2.0, 3.0, 4.0}}};

/// Files of a family in which a key can have an effect: as it is written, and with what other keys wait for.
std::vector<Json> files_of(const Family& family) {
  const Json none = nullptr;
  const Json beside[] = {
      Json::object(),
      {{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 2}, {"layer_types", none}},
      {{"sliding_window", 8}, {"layer_types", none}},
      {{"rope_scaling", linear}, {"rope_theta", none}, {"rope_parameters", none}},
      {{"rope_parameters", linear}, {"rope_theta", none}, {"rope_scaling", none}},
      {{"rope_parameters", {{"full_attention", linear}, {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 50.0}}}}},
       {"rope_theta", none},
       {"rope_local_base_freq", none},
       {"rope_scaling", none}},
      {{"rope_scaling", longrope},
       {"rope_theta", none},
       {"rope_parameters", none},
       {"original_max_position_embeddings", 32},
       {"max_position_embeddings", 64}},
      {{"rope_parameters", longrope},
       {"rope_theta", none},
       {"rope_scaling", none},
       {"original_max_position_embeddings", 32},
       {"max_position_embeddings", 64}},
      {{"n_embd", none},
       {"hidden_size", 32},
       {"n_head", none},
       {"num_attention_heads", 4},
       {"n_layer", none},
       {"num_hidden_layers", 4},
       {"n_positions", none},
       {"max_position_embeddings", 64}},
      {{"sliding_window", 8}, {"max_window_layers", 2}, {"layer_types", none}},
      {{"n_routed_experts", none}, {"num_experts", none}, {"num_local_experts", 4}},
      {{"num_key_value_heads", none}},
      {{"position_embedding_type", "rope"}}};
  std::vector<Json> files;
  for (ModelKeys m = small_model(family); files.empty() && m.shared_ff_width <= 48; m.shared_ff_width += 24) {
    Deck deck;
    deck.model = m;
    Json written = Json::parse(model_config(family, deck).dump());
    written["model_type"] = std::string(family.type);
    for (const Json& more : beside) {
      Json file = written;
      file.update(more);
      if (read(file).faults.empty()) files.push_back(file);
    }
  }
  EXPECT_FALSE(files.empty()) << family.type;
  return files;
}

std::vector<Json> values_of(const Json& file, const std::string& key) {
  std::vector<Json> values;
  if (file.contains(key) && file[key].is_number_integer()) values.emplace_back(2 * file[key].get<std::int64_t>());
  if (file.contains(key) && file[key].is_number()) values.emplace_back(0.5 * file[key].get<double>());
  const Json full = "full_attention", slides = "sliding_attention";
  const Json more[] = {0,
                       1,
                       2,
                       3,
                       6,
                       8,
                       0.25,
                       0.5,
                       true,
                       false,
                       "silu",
                       "gelu",
                       "relu2",
                       "rope",
                       "nope",
                       "no such word",
                       Json::array(),
                       Json::object(),
                       linear,
                       longrope,
                       {{"full_attention", linear}},
                       Json::array({0}),
                       Json::array({0, 1, 1, 1}),
                       Json::array({slides, full, full, full}),
                       Json::array({full, full, full, full})};
  values.insert(values.end(), std::begin(more), std::end(more));
  return values;
}

bool is_same(const ModelSource& a, const ModelSource& b) { return a.model == b.model && a.context == b.context; }

/// `file` is read as `usual`.
Effect effect_in(const Json& file, const Reading& usual, const std::string& key) {
  Json without = file;
  without.erase(key);
  const Reading missing = read(without);
  if (missing.faults.empty() && !is_same(missing.source, usual.source)) return Effect::used;
  Effect found = Effect::unknown;
  for (const Json& value : values_of(file, key)) {
    Json other = file;
    other[key] = value;
    const Reading reading = read(other);
    if (!reading.knows(key)) return Effect::unknown;
    if (reading.faults.empty() && !is_same(reading.source, usual.source)) return Effect::used;
    const bool noted = reading.faults.empty() && !reading.source.notes.empty() && reading.source.notes != missing.source.notes;
    found = std::min(found, !reading.faults.empty() ? Effect::limited : noted ? Effect::named : Effect::none);
  }
  return found == Effect::limited && key.ends_with("_token_id") ? Effect::carried : found;
}

using Keys = std::map<Effect, std::set<std::string>>;

/// All families' keys, and those that are the same in each, which "" has.
std::map<std::string, Keys> keys_of_families() {
  const std::set<std::string> all = names();
  std::map<std::string, Keys> found;
  std::map<std::string, std::set<Effect>> seen;
  for (const Family& family : families()) {
    std::vector<std::pair<Json, Reading>> files;
    for (const Json& file : files_of(family)) files.emplace_back(file, read(file));
    for (const std::string& key : all) {
      Effect effect = Effect::unknown;
      const bool alone = huggingface::holds(huggingface::harmless, key) || huggingface::holds(huggingface::unused, key);
      for (const auto& [file, usual] : files) {
        effect = std::min(effect, effect_in(file, usual, key));
        if (alone || effect == Effect::used || effect == Effect::unknown) break;  // another file says no more
      }
      seen[key].insert(effect);
      if (effect != Effect::unknown) found[std::string(family.type)][effect].insert(key);
    }
  }
  for (const auto& [key, effects] : seen) {
    if (effects.size() > 1 || effects.contains(Effect::unknown)) continue;
    for (auto& [type, keys] : found) keys[*effects.begin()].erase(key);
    found[""][*effects.begin()].insert(key);
  }
  return found;
}

std::string table_of(const Keys& keys) {
  constexpr std::pair<Effect, const char*> words[] = {{Effect::used, "used"},
                                                      {Effect::limited, "one value, or that of the class; others are refused"},
                                                      {Effect::named, "named in the log, without effect"},
                                                      {Effect::none, "without effect"},
                                                      {Effect::carried, "ids of tokens, which exports carry"}};
  std::string text = "| keys | names |\n|---|---|\n";
  for (const auto& [effect, word] : words)
    if (const auto of = keys.find(effect); of != keys.end() && !of->second.empty())
      text += fmt::format("| {} | `{}` |\n", word, fmt::join(of->second, "`, `"));
  return text;
}

constexpr const char *begin_mark = "<!-- keys: TESSERA_WRITE_CARDS=1 test_families -->", *end_mark = "<!-- end of keys -->";

TEST(ConfigKeys, EachCardSaysWhatItsKeysComeTo) {
  for (const auto& [type, keys] : keys_of_families()) {
    const std::string path = fmt::format("{}/{}.md", TESSERA_CARDS, type.empty() ? "README" : type);
    const std::string text = test::slurp(path);
    const std::size_t begin = text.find(begin_mark), end = text.find(end_mark);
    ASSERT_TRUE(begin != text.npos && end != text.npos) << path << " has no place for its keys";
    const std::string made = text.substr(0, begin) + begin_mark + "\n\n" + table_of(keys) + "\n" + text.substr(end);
    if (std::getenv("TESSERA_WRITE_CARDS"))
      test::spill(path, made);
    else
      EXPECT_EQ(text, made) << path << " is not what the readers of config.json do: TESSERA_WRITE_CARDS=1 test_families";
  }
}

}  // namespace
}  // namespace tessera::config_keys_test
