// The imported lines as a deck: checked by the deck's own parser, whose faults are shown where the configuration says what they are about.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/check.hpp"
#include "deck/import/importer.hpp"

namespace tessera {
namespace {

constexpr const char* deck_name = "imported.toml";

/// "line   # comment", the comment where inputs/ has it.
std::string with_comment(const std::string& line, const std::string& comment) {
  return comment.empty() ? line + "\n" : fmt::format("{:27}  # {}\n", line, comment);
}

}  // namespace

void Importer::put_model(const ModelSource& source) {
  if (source.model.layers == 0) return;  // its faults say why
  Deck deck;
  deck.model = source.model;
  model_comment_ = source.from;
  for (const Key& key : deck_keys()) {
    if (key.section() != "model") continue;
    const std::string value = value_text(key, deck);
    const bool shape = key.required || key.automatic == Auto::resolved;
    if (shape || value != default_text(key)) lines_.emplace(key.name, ImportedLine{value, "", "", "", {}});
  }
  if (request_.tuning.data) return;  // whose length is a matter of the data
  // Longer sequences than the model was made for are legal: it is a guess, and marked as one.
  const std::int64_t tokens = source.context > 0 ? std::min<std::int64_t>(source.context, 4096) : 4096;
  assume("batch.sequence_length", fmt::format("{}", tokens), "FILL IN: tokens of a sequence");
}

ImportedDeck Importer::finish(const std::string& title) {
  const std::string draft = compose(lines_);
  const ParsedDeck alone = parse_deck_text(draft, deck_name, {}, request_.ranks);
  const ParsedDeck overridden = parse_deck_text(draft, deck_name, request_.overrides, request_.ranks);
  take_faults(overridden);
  if (!faults_.empty() || !line("model.layers")) {  // without a model its own faults say why
    const auto line_of = [&](const Fault& f) { return std::tuple(f.line == 0, f.file != file_, f.line, f.column); };
    std::ranges::stable_sort(faults_, {}, line_of);
    return {"", faults_};
  }
  const std::string lines = compose(final_lines(alone, overridden));
  const std::string text =
      fmt::format("# {}{}\n\n{}{}", title, lines.find("FILL IN") == lines.npos ? "" : " FILL IN marks what such a file does not hold.",
                  lines, remarks());
  const ParsedDeck again = parse_deck_text(text, deck_name, {}, request_.ranks);
  TESSERA_REQUIRE(again.faults.empty(), "an imported deck is refused: {}", again.faults.empty() ? "" : again.faults[0].str());
  return {text, {}};
}

std::string Importer::compose(const std::map<std::string, ImportedLine, std::less<>>& lines) const {
  std::string text;
  std::string_view section;
  for (const Key& key : deck_keys()) {
    const auto it = lines.find(key.name);
    if (it == lines.end()) continue;
    if (key.section() != section) {
      section = key.section();
      if (!text.empty()) text += "\n";
      text += with_comment(fmt::format("[{}]", section), section == "model" ? model_comment_ : "");
    }
    text += with_comment(fmt::format("{} = {}", key.leaf(), it->second.value), it->second.comment);
  }
  return text;
}

/// With the overrides, and without what they leave without effect.
std::map<std::string, ImportedLine, std::less<>> Importer::final_lines(const ParsedDeck& alone, const ParsedDeck& overridden) const {
  std::map<std::string, ImportedLine, std::less<>> lines;
  for (const Key& key : deck_keys()) {
    const std::string value = value_text(key, overridden.deck);
    if (this->overridden(key.name)) {
      lines.emplace(key.name, ImportedLine{value, "from the command line", "", "", {}});
    } else if (const ImportedLine* given = line(key.name)) {
      const bool dropped = given->value != "\"auto\"" && value != value_text(key, alone.deck);
      if (!dropped) lines.emplace(key.name, *given);
    }
  }
  return lines;
}

/// What of the configuration became no line, and why: keys with the same reason together.
std::string Importer::remarks() const {
  std::vector<std::pair<std::string, std::string>> reasons;  // reason, keys
  for (const auto& [key, why] : notes_) {
    const auto same = std::ranges::find(reasons, why, &std::pair<std::string, std::string>::first);
    if (same == reasons.end())
      reasons.emplace_back(why, key);
    else
      same->second += fmt::format(", {}", key);
  }
  std::string text;
  for (const auto& [why, keys] : reasons) text += fmt::format("#   {}:\n#     {}\n", keys, why);
  return text.empty() ? "" : "\n# Keys of the configuration that need none here:\n" + text;
}

/// Faults of the deck, at the key of the configuration that they come from.
void Importer::take_faults(const ParsedDeck& parsed) {
  for (const Fault& fault : parsed.faults) {
    const ImportedLine* from = line(fault.key);
    const Key* key = find_key(fault.key);
    if (fault.file != deck_name) {
      faults_.push_back(fault);  // an override
    } else if (from && !from->from.empty()) {
      faults_.push_back({from->file, from->place.line, from->place.column, from->from, fmt::format("as {}: {}", fault.key, fault.message)});
    } else if (from || (key && !key->required)) {
      add({}, fault.key, fmt::format("{} (set it on the command line: {}=VALUE)", fault.message, fault.key));
    }
    // A key that must be given and is not: what it lacks has been said.
  }
}

}  // namespace tessera
