// Every key of DeepSpeed's has an outcome: it becomes a key of the deck, a remark that says why none is needed, or a refusal.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include "base/json.hpp"

#include "deck/import/foreign_keys.hpp"
#include "deck/import/import.hpp"
#include "deck/schema/value.hpp"
#include "deepspeed_cases.hpp"
#include "small_deck.hpp"

namespace tessera::deepspeed_keys_test {
namespace {

using test::deepspeed_cases;
using test::DeepSpeedCase;

// Guides write these; DeepSpeed itself reads none of them, or writes them itself.
constexpr std::string_view beyond_the_list[] = {"aio.thread_count", "tensor_parallel.tp_size", "pipeline_parallel.pp_size"};

/// The members of `more` join those of `root`, at every depth.
void merge(Json& root, const Json& more) {
  for (const auto& [key, value] : more.items())
    if (value.is_object())
      merge(root[key], value);
    else
      root[key] = value;
}

/// A configuration in which the key asks for something.
std::string configuration(const DeepSpeedCase& c) {
  Json root = {{"train_batch_size", 2}, {"train_micro_batch_size_per_gpu", 1}};
  merge(root, Json::parse(c.beside));
  const ForeignKey* row = deepspeed_table().find(c.name);
  if (row && row->outcome == ForeignOutcome::part) {
    const ForeignKey& whole = deepspeed_table().deciding(*row);
    if (!whole.off.empty()) root.nested(fmt::format("{}.{}", whole.name, whole.off), '.') = true;
  }
  root.nested(c.name, '.') = Json::parse(c.value);
  return root.dump(2);
}

ImportedDeck import_case(const DeepSpeedCase& c) {
  return import_deepspeed_text(configuration(c), {.path = "ds.json", .model = "llama3-8b", .overrides = {}, .ranks = 2});
}

std::string faults_text(const ImportedDeck& imported) { return faults_of({{}, imported.faults, {}}); }

/// "zero.stage = 2" of a deck.
std::string value_in(const std::string& deck, std::string_view name) {
  const ParsedDeck parsed = parse_deck_text(deck, "imported.toml", {}, 2);
  EXPECT_EQ(faults_of(parsed), "");
  return fmt::format("{} = {}", name, value_text(*find_key(name), parsed.deck));
}

TEST(DeepSpeedKeys, EveryKeyHasItsOutcome) {
  for (const DeepSpeedCase& c : deepspeed_cases) {
    const ForeignKey* row = deepspeed_table().find(c.name);
    ASSERT_TRUE(row) << c.name;
    const ImportedDeck imported = import_case(c);
    if (c.outcome == DeepSpeedCase::refused) {
      const std::string where(deepspeed_table().deciding(*row).name);
      ASSERT_EQ(imported.faults.size(), 1u) << c.name << "\n" << faults_text(imported);
      EXPECT_EQ(imported.faults[0].key, where);
      EXPECT_GT(imported.faults[0].line, 0) << c.name;
      EXPECT_GT(imported.faults[0].message.size(), 20u);
      EXPECT_EQ(imported.text, "");
      continue;
    }
    ASSERT_EQ(faults_text(imported), "") << c.name;
    if (c.outcome == DeepSpeedCase::mapped) {
      EXPECT_EQ(value_in(imported.text, c.becomes.substr(0, c.becomes.find(' '))), c.becomes) << c.name;
      EXPECT_EQ(row->outcome, ForeignOutcome::mapped) << c.name;
    } else {
      const std::string name(deepspeed_table().deciding(*row).name);
      EXPECT_NE(imported.text.find(name), std::string::npos) << name << "\n" << imported.text;
      EXPECT_EQ(deepspeed_table().deciding(*row).outcome, ForeignOutcome::unneeded) << c.name;
      EXPECT_GT(deepspeed_table().deciding(*row).says.size(), 15u) << c.name;
    }
  }
}

// A section whose switch is off, or a refused key whose value asks for nothing, stops nobody.
TEST(DeepSpeedKeys, WhatIsOffIsLetPass) {
  int off = 0;
  for (const ForeignKey& key : deepspeed_table().rows) {
    if (key.outcome != ForeignOutcome::refused || key.off.empty()) continue;
    Json root = {{"train_batch_size", 2}, {"train_micro_batch_size_per_gpu", 1}, {"optimizer", {{"type", "Adam"}}}};
    root["scheduler"] = {{"type", "WarmupLR"}};
    if (key.type == ForeignType::section)
      root.nested(fmt::format("{}.{}", key.name, key.off), '.') = false;
    else
      root.nested(key.name, '.') = Json::try_parse(key.off).value_or(Json(key.off));
    const ImportedDeck imported =
        import_deepspeed_text(root.dump(2), {.path = "ds.json", .model = "llama3-8b", .overrides = {}, .ranks = 2});
    EXPECT_EQ(faults_text(imported), "") << key.name;
    EXPECT_NE(imported.text.find(key.name), std::string::npos) << key.name;
    ++off;
  }
  EXPECT_GT(off, 25);
}

Json beside(std::string_view name, const Json& value) {
  Json root = {{"train_batch_size", 2}, {"train_micro_batch_size_per_gpu", 1}};
  root.nested(name, '.') = value;
  return root;
}

// null is as if the key were not there, and a remark says so; what is no key is a fault at any depth.
TEST(DeepSpeedKeys, NullAndUnknownKeysAreNotSilent) {
  const auto import_json = [](const Json& root) {
    return import_deepspeed_text(root.dump(2), {.path = "ds.json", .model = "llama3-8b", .overrides = {}, .ranks = 2});
  };
  std::set<std::string> sections = {""};
  for (const ForeignKey& key : deepspeed_table().rows) {
    for (std::string_view name = key.name; name.find('.') != name.npos;) sections.emplace(name = name.substr(0, name.rfind('.')));
    if (key.name.starts_with("train_")) continue;  // what a batch cannot do without
    const ImportedDeck imported = import_json(beside(key.name, nullptr));
    const std::string section(key.section());
    const bool whole = !section.empty() && deepspeed_table().find(section);  // the section as a whole is a remark or a fault
    const std::string named = whole ? section : std::string(key.name);
    const bool said = std::ranges::any_of(imported.faults, [&](const Fault& f) { return named.starts_with(f.key); });
    EXPECT_TRUE(said || imported.text.find(named) != std::string::npos) << key.name << "\n" << faults_text(imported);
  }
  for (const std::string& section : sections) {
    const ForeignKey* row = deepspeed_table().find(section);
    if (row && (row->open || row->type != ForeignType::section)) continue;  // its keys are not looked at
    const std::string name = section.empty() ? "no_such_word" : section + ".no_such_word";
    EXPECT_NE(faults_text(import_json(beside(name, 1))).find(name + ": is not a key of DeepSpeed's"), std::string::npos) << name;
    EXPECT_NE(faults_text(import_json(beside(name, nullptr))).find(name + ": is not a key of DeepSpeed's"), std::string::npos) << name;
  }
}

// What DeepSpeed 0.19.8 removed and what it brought.
TEST(DeepSpeedKeys, WhatDeepSpeedItselfRefusesIsMarked) {
  for (const std::string_view name : {"nebula", "compression_training", "amp", "quantize_training", "sparse_gradients", "eigenvalue",
                                      "sparse_attention", "elasticity", "graph_harvesting", "curriculum_learning", "progressive_layer_drop",
                                      "zero_optimization.mics_shard_size", "zero_optimization.mics_hierarchical_params_gather"}) {
    const ForeignKey* row = deepspeed_table().find(name);
    ASSERT_TRUE(row) << name;
    const Json value = row->type == ForeignType::section   ? Json{{"enabled", true}}
                       : row->type == ForeignType::integer ? Json(4)
                                                           : Json(true);
    const ImportedDeck imported =
        import_deepspeed_text(beside(name, value).dump(2), {.path = "ds.json", .model = "llama3-8b", .overrides = {}, .ranks = 2});
    EXPECT_NE((faults_text(imported) + imported.text).find("DeepSpeed itself refuses it since 0.19.8"), std::string::npos) << name;
  }
  for (const char* type : {"ZeroOneAdam", "OneBitLamb"}) {
    const std::string text = beside("optimizer", {{"type", type}}).dump();
    const ImportRequest request{.path = "ds.json", .model = "llama3-8b", .overrides = {}, .ranks = 2};
    EXPECT_NE(faults_text(import_deepspeed_text(text, request)).find("DeepSpeed itself refuses them since 0.19.8"), std::string::npos)
        << type;
    ImportRequest other = request;
    other.overrides = {"optimizer.type=adamw"};
    EXPECT_EQ(faults_text(import_deepspeed_text(text, other)), "") << type;
  }
}

TEST(DeepSpeedKeys, TableAndListHoldTheSameKeys) {
  std::map<std::string_view, int> listed;
  for (const DeepSpeedCase& c : deepspeed_cases) EXPECT_EQ(++listed[c.name], 1) << c.name << " stands twice in the list";
  for (const std::string_view name : beyond_the_list) ++listed[name];
  std::map<std::string_view, int> rows;
  for (const ForeignKey& key : deepspeed_table().rows) {
    EXPECT_EQ(++rows[key.name], 1) << key.name << " has two rows";
    // A section's row decides for its parts, which are the keys.
    const bool has_parts = key.type == ForeignType::section && deepspeed_table().is_section(key.name);
    EXPECT_TRUE(listed.contains(key.name) || has_parts) << key.name << " is not in the list";
    if (key.outcome == ForeignOutcome::mapped) {
      EXPECT_TRUE(find_key(key.ours)) << key.name << " becomes " << key.ours << ", which is no key";
    }
  }
  for (const auto& [name, count] : listed) EXPECT_TRUE(rows.contains(name)) << name << " has no row";
}

TEST(DeepSpeedKeys, GuidesKeysHaveOutcomesToo) {
  const ImportedDeck imported = import_deepspeed_text(
      R"({"train_batch_size": 2, "train_micro_batch_size_per_gpu": 1, "aio": {"thread_count": 1}, "tensor_parallel": {"tp_size": 1},
          "pipeline_parallel": {"pp_size": 1}})",
      {.path = "ds.json", .model = "llama3-8b", .overrides = {}, .ranks = 2});
  EXPECT_EQ(faults_text(imported), "");
  EXPECT_NE(imported.text.find("aio.thread_count:\n#     DeepSpeed does not read it either"), std::string::npos) << imported.text;
  EXPECT_EQ(value_in(imported.text, "mesh.tp"), "mesh.tp = 1");
}

// A section at the wrong level is not refused as if it were none: its place is said.
TEST(DeepSpeedKeys, ASectionInTheWrongPlaceIsToldItsOwn) {
  for (const ForeignKey& key : deepspeed_table().rows) {
    const std::size_t first = key.name.find('.'), second = key.name.find('.', first + 1);
    if (second == key.name.npos || key.name.find(".params") != key.name.npos) continue;
    const std::string section(key.name.substr(first + 1, second - first - 1));
    if (deepspeed_table().find(section) || deepspeed_table().is_section(section)) continue;
    const ImportedDeck imported = import_deepspeed_text(fmt::format("{{\"train_batch_size\": 2, \"{}\": {{}}}}", section),
                                                        {.path = "ds.json", .model = "llama3-8b", .overrides = {}, .ranks = 2});
    EXPECT_NE(faults_text(imported).find("in this place; "), std::string::npos) << section << ": " << faults_text(imported);
    EXPECT_NE(faults_text(imported).find("." + section + " is"), std::string::npos) << section << ": " << faults_text(imported);
  }
}

// docs/deepspeed.md holds what `tessera deck import --keys` prints.
TEST(DeepSpeedKeys, ThePageHoldsTheTable) {
  std::ifstream in(std::string(TESSERA_SOURCE_DIR) + "/docs/deepspeed.md");
  std::ostringstream page;
  page << in.rdbuf();
  EXPECT_NE(page.str().find(deepspeed_table().reference()), std::string::npos)
      << "put the output of `tessera deck import --keys` into docs/deepspeed.md";
}

}  // namespace
}  // namespace tessera::deepspeed_keys_test
