// What messages name is there, and what they deny is not: keys that come or go take the texts about them along.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>

#include "../scratch.hpp"
#include "deck/import/foreign_keys.hpp"
#include "deck/schema/hints.hpp"
#include "deck/schema/schema.hpp"

namespace tessera::texts_test {
namespace {

namespace fs = std::filesystem;

struct Text {
  std::string file, text;
};

/// The string literals of the sources, neighbours as one.
std::vector<Text> literals() {
  std::vector<Text> all;
  const std::regex pieces(R"re("(?:[^"\\\n]|\\.)*"(?:\s*\n\s*"(?:[^"\\\n]|\\.)*")*)re"), seam(R"re("\s*\n\s*")re");
  for (const auto& entry : fs::recursive_directory_iterator(std::string(TESSERA_SOURCE_DIR) + "/src")) {
    if (entry.path().extension() != ".cpp" && entry.path().extension() != ".hpp") continue;
    const std::string source = std::regex_replace(test::slurp(entry.path().string()), std::regex(R"((^|\n)\s*(//|#include)[^\n]*)"), "\n");
    for (std::sregex_iterator it(source.begin(), source.end(), pieces), end; it != end; ++it)
      all.push_back({entry.path().filename().string(), std::regex_replace(it->str(), seam, "")});
  }
  return all;
}

/// Some other program has a key or section of this name.
bool is_foreign(const std::string& name) {
  if (name == "model.language_model") return true;  // of names of tensors
  if (std::ranges::find(hint_words(), name, &HintWord::theirs) != hint_words().end()) return true;
  for (const ForeignTable* table : {&deepspeed_table(), &trainer_table()})
    if (table->find(name) || table->is_section(name)) return true;
  return false;
}

bool names_a_key(std::string_view text) {
  return std::ranges::any_of(deck_keys(), [&](const Key& key) { return text.find(key.name) != text.npos; });
}

// "mesh.ep", "optimizer.beta2", "checkpoint.every=N": what looks like a key of one of the deck's sections is one.
TEST(Texts, KeysThatTheyNameAreThere) {
  std::set<std::string> sections;
  for (const Key& key : deck_keys()) sections.emplace(key.name.substr(0, key.name.find('.')));
  // Files, parts of memory and tensors of Hugging Face.
  const std::set<std::string> others = {"run.lock",      "metrics.jsonl", "events.jsonl", "kernels.json",
                                        "nvme.requests", "checkpoint.h5", "model.h5"};
  const std::regex path(R"((^|[^a-z_0-9./])([a-z_]+(?:\.[a-z_0-9]+)+))");
  int named = 0;
  for (const Text& text : literals()) {
    for (std::sregex_iterator it(text.text.begin(), text.text.end(), path), end; it != end; ++it) {
      const std::string name = (*it)[2].str();
      const bool other = others.contains(name) || name.ends_with('_') || name.find(".safetensors") != name.npos ||
                         name.ends_with(".weight") || name.ends_with(".bias");
      if (other || !sections.contains(name.substr(0, name.find('.')))) continue;
      ++named;
      EXPECT_TRUE(find_key(name) || is_section(name) || is_foreign(name)) << text.file << ": " << name << "\n" << text.text;
    }
  }
  EXPECT_GT(named, 1000);
}

TEST(Texts, HintsNameKeysAndAgreeWithImports) {
  for (const HintWord& word : hint_words()) {
    EXPECT_TRUE(word.ours.empty() || find_key(word.ours) || is_section(word.ours)) << word.theirs << ": " << word.ours;
    EXPECT_TRUE(!word.ours.empty() || !word.note.empty()) << word.theirs;
    for (const ForeignTable* table : {&deepspeed_table(), &trainer_table()})
      for (const ForeignKey& row : table->rows) {
        if (row.name != word.theirs && row.leaf() != word.theirs) continue;
        // What an import makes of a key, or answers with one, is not denied.
        const bool answered = row.outcome == ForeignOutcome::mapped || names_a_key(row.says);
        EXPECT_TRUE(!answered || !word.ours.empty() || names_a_key(word.note)) << word.theirs << ": " << row.ours << row.says;
      }
  }
}

// Words that once were denied, or easily could be, and the keys that have them now.
TEST(Texts, NothingIsDeniedThatIsThere) {
  struct There {
    const char *words, *key;
  };
  const There there[] = {{"expert.parallel", "mesh.ep"},
                         {"(mixture.of.)?experts", "model.experts"},
                         {"tensor.parallel", "mesh.tp"},
                         {"pipeline( stages|s)?", "mesh.pp"},
                         {"context.parallel", "mesh.cp"},
                         {"ring attention", "context.method"},
                         {"interleaved", "pipeline.virtual_stages"},
                         {"lora|adapters", "lora.rank"},
                         {"frozen|freezing", "model.freeze"},
                         {"parameter groups|groups of the optimizer", "optimizer.groups"},
                         {"epochs", "run.epochs"},
                         {"batch.?size.ramps?|ramps of (the )?(batch|sequence)", "batch.ramp"},
                         {"warmup.ratio", "learning_rate.warmup_ratio"},
                         {"document masks?|packing", "data.packing"},
                         {"mixtures of (files|data)", "data.weights"},
                         {"yarn|llama3 scaling|linear scaling", "model.rope_scaling"},
                         {"offload(ed|ing)? (of )?(parameters|activations|optimizer)", "zero.offload_param.device"},
                         {"activation offload", "activation.offload"},
                         {"time(s|d|r|rs)? of (tasks|a step)|wall.?clock", "run.trace"},
                         {"asynchronous (saves|checkpoints)", "checkpoint.async"},
                         {"weights.only", "checkpoint.weights_every"},
                         {"bf16", "precision.compute"},
                         {"cosine|wsd", "learning_rate.schedule"},
                         {"gradient.clipping", "optimizer.gradient_clipping"},
                         {"cuda graphs?", "kernels.cuda_graph"}};
  for (const There& t : there) EXPECT_TRUE(find_key(t.key)) << t.key;
  // "X is not in this version", "there is no X", "Tessera has no X".
  const std::regex denied(R"(([^.;:,(]*)(?:is|are) not (?:here|there|in this version)|(?:there is|there are|tessera has) no ([^.;:,(]*))",
                          std::regex::icase);
  int denials = 0;
  for (const Text& text : literals())
    for (std::sregex_iterator it(text.text.begin(), text.text.end(), denied), end; it != end; ++it) {
      const std::string what = (*it)[1].matched ? (*it)[1].str() : (*it)[2].str();
      ++denials;
      for (const There& t : there)
        EXPECT_FALSE(std::regex_search(what, std::regex(std::string("^\\s*\"?(") + t.words + ")", std::regex::icase)))
            << text.file << " denies " << t.key << ":\n"
            << text.text;
    }
  EXPECT_GT(denials, 30);
}

}  // namespace
}  // namespace tessera::texts_test
