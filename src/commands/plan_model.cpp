// tessera plan MODEL: a model by its name in the place of a deck, and what of a deck a plan does not need.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "commands/plan_options.hpp"
#include "deck/import/model_source.hpp"
#include "deck/schema/schema.hpp"
#include "deck/schema/value.hpp"
#include "io/files/path_state.hpp"

namespace tessera {
namespace {

constexpr std::int64_t usual_length = 8192;  // tokens of a sequence, where the model takes as many

/// No file, and written as no path: the name of a model.
bool is_name(const std::string& path) {
  return !path.empty() && path.find('/') == path.npos && path.find('=') == path.npos && !path.ends_with(".toml") &&
         !path.ends_with(".json") && io::look_at(path).nothing();
}

/// Its keys that are not their defaults.
std::string section_of(const ModelKeys& model) {
  Deck deck, plain;
  deck.model = model;
  std::string text = "[model]\n";
  for (const Key& key : deck_keys()) {
    if (key.section() != "model") continue;
    const std::string value = value_text(key, deck);
    if (key.required || value != value_text(key, plain)) text += fmt::format("{} = {}\n", key.leaf(), value);
  }
  return text;
}

}  // namespace

std::string usual_deck(const std::string& model, std::int64_t sequence_length, std::int64_t ranks) {
  const std::int64_t million = (std::int64_t{1} << 20) / sequence_length;
  return fmt::format(R"({}[batch]
global = {}
micro = 1
sequence_length = {}
[data]
train = "data/train.h5"
[optimizer]
learning_rate = 3e-4
[run]
name = "planned"
steps = 1000
[precision]
compute = "bf16"
[zero]
stage = 3
[activation]
recompute = "full"
)",
                     model, ranks * std::max<std::int64_t>(1, million / ranks), sequence_length);
}

std::int64_t most_ranks(const PlanOptions& o) { return o.sweep.empty() ? o.ranks : std::ranges::max(o.sweep); }

PlanOptions with_model(PlanOptions o) {
  if (!o.text.empty() || !is_name(o.path)) return o;
  std::vector<Fault> faults;
  const ModelSource source = read_model(o.path, faults);
  if (!faults.empty())
    fail(ExitCode::usage, "{}. It is not a file either: `tessera plan` takes a deck (FILE.toml) or such a name.", faults.front().message);
  const std::int64_t length = std::min(source.context > 0 ? source.context : usual_length, usual_length);
  o.text = usual_deck(section_of(source.model), length, most_ranks(o));
  o.shape = fmt::format("{}: ZeRO stage 3, all layers recomputed, a million tokens a step in sequences of {}; any key changes it",
                        source.from.empty() ? o.path : source.from, length);
  return o;
}

ParsedDeck without_needless_keys(const ParsedDeck& parsed, const std::function<ParsedDeck(const std::vector<std::string>&)>& read) {
  // Neither memory nor time depends on them.
  constexpr std::pair<const char*, const char*> needless[] = {{"optimizer.learning_rate", "3e-4"}, {"data.train", "data/train.h5"}};
  std::vector<std::string> added;
  for (const auto& [key, value] : needless)
    for (const Fault& fault : parsed.faults)
      if (fault.key == key && fault.message.find("required and missing") != fault.message.npos)
        added.push_back(fmt::format("{}={}", key, value));
  return added.empty() ? parsed : read(added);
}

double read_tokens(const std::string& text) {
  const double tokens = read_count(text, "KMBT");
  if (!(tokens >= 1 && tokens <= 1e18)) fail(ExitCode::usage, "--tokens {}: give a number from 1 to 1e18, for example 15T or 15e12", text);
  return tokens;
}

}  // namespace tessera
