// Goes through a configuration key by key, by the table.
#include "deck/import/importer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "deck/schema/hints.hpp"
#include "optimizer/texts/table.hpp"

namespace tessera {
namespace {

std::string joined(const std::string& path, const std::string& name) { return path.empty() ? name : path + "." + name; }

/// A switch that is off, or switches further in that all are: a section that is there and does nothing.
bool is_off(const ForeignKey& row, const JsonNode& node) {
  if (node.kind != JsonNode::Kind::object) return false;
  if (!row.off.empty()) {
    const JsonNode* on = node.member(row.off);
    return !on || on->literal.str() == "false" || on->is("auto");
  }
  bool any = false, all = true;
  const auto look = [&](const JsonNode& at, const auto& again) -> void {
    for (const JsonNode& child : at.children) {
      if (child.name == "enabled") any = true, all = all && child.literal.str() == "false";
      again(child, again);
    }
  };
  look(node, look);
  return node.children.empty() || (any && all);
}

bool same_value(const JsonNode& node, std::string_view text) {
  if (node.kind != JsonNode::Kind::integer && node.kind != JsonNode::Kind::real) return node.written == text;
  char* end = nullptr;
  const std::string copy(text);
  const double value = std::strtod(copy.c_str(), &end);
  return end != copy.c_str() && *end == '\0' && value == node.number();
}

const char* expected(ForeignType type) {
  switch (type) {
    case ForeignType::integer:
      return "a whole number";
    case ForeignType::real:
      return "a number";
    case ForeignType::boolean:
      return "true or false";
    case ForeignType::text:
      return "a text";
    case ForeignType::list:
      return "a list [ ... ]";
    case ForeignType::section:
      return "an object { ... }";
    case ForeignType::any:
      break;
  }
  return "a value";
}

bool is_of(ForeignType type, const JsonNode& node) {
  using Kind = JsonNode::Kind;
  switch (type) {
    case ForeignType::integer:  // also 5e8
      return node.kind == Kind::integer ||
             (node.kind == Kind::real && std::abs(node.number()) < 9e18 && node.number() == std::floor(node.number()));
    case ForeignType::real:
      return node.kind == Kind::integer || node.kind == Kind::real;
    case ForeignType::boolean:
      return node.kind == Kind::boolean;
    case ForeignType::text:
      return node.kind == Kind::text;
    case ForeignType::list:
      return node.kind == Kind::list;
    case ForeignType::section:
      return node.kind == Kind::object;
    case ForeignType::any:
      return true;
  }
  return false;
}

/// What stands after `=` in a deck.
std::string deck_value(const Key& ours, const ForeignKey& row, const JsonNode& node) {
  std::string word = node.written;
  for (const auto& [theirs, here] : row.words)
    if (theirs == node.written) word = here;
  if (ours.type == KeyType::text) return toml_string(word);
  // A count of elements stays as it was written, 5e8; any other whole number is one here too.
  if (ours.type == KeyType::integer && node.kind == JsonNode::Kind::real)
    return fmt::format("{}", static_cast<std::int64_t>(node.number()));
  return word;
}

}  // namespace

Importer::Importer(const ImportRequest& request, const ForeignTable& table, std::string file)
    : request_(request), table_(table), file_(std::move(file)) {
  for (const std::string& text : request.overrides) {
    std::string name = text.substr(0, text.find('='));
    name.erase(0, name.find_first_not_of(" \t"));
    name.erase(name.find_last_not_of(" \t") + 1);
    if (find_key(name)) overridden_[name] = text.substr(std::min(text.size(), text.find('=') + 1));
  }
}

void Importer::walk(const JsonNode& root) {
  const auto type_of = [&](const char* name) -> std::optional<std::string> {
    const JsonNode* node = root.member(name);
    const JsonNode* type = node ? node->member("type") : nullptr;
    return type ? std::optional(lower_case(type->written)) : std::nullopt;
  };
  if (const auto type = type_of("optimizer"); type && !optimizer_of_deepspeed(*type)) foreign_.insert("optimizer");
  constexpr std::string_view schedules[] = {"warmuplr", "warmupdecaylr", "warmupcosinelr", "cosine", "onecycle", "lrrangetest"};
  if (const auto type = type_of("scheduler"); type && std::ranges::find(schedules, *type) == std::end(schedules))
    foreign_.insert("scheduler");
  walk_section(root, "");
}

void Importer::walk_section(const JsonNode& object, const std::string& path) {
  for (const JsonNode& node : object.children) {
    const std::string written = joined(path, node.name), name = table_.canonical(written);
    const ForeignKey* row = table_.find(name);
    if (!row && !table_.is_section(name)) {
      unknown(written, node);
      continue;
    }
    if (node.kind == JsonNode::Kind::null) {
      note(name, "null: as if the key were missing");
      nulls_.emplace(name, node.place);
      continue;
    }
    if (!places_.emplace(name, node.place).second) {
      if (written != name)
        add(node.name_place, written, fmt::format("is another name of {}, which is there too; leave one of the two out", name));
      continue;
    }
    if (row) {
      one(*row, node);
    } else if (node.kind != JsonNode::Kind::object) {
      add(node.place, written, fmt::format("expected an object {{ ... }}, got {}", shortened(node.literal.str())));
    } else {
      walk_section(node, name);
    }
  }
}

void Importer::one(const ForeignKey& row, const JsonNode& node) {
  if (!fits(row, node)) return;
  if (node.is("auto")) autos_.insert(std::string(row.name));
  if (row.type == ForeignType::section) return whole_section(row, node);
  switch (row.outcome) {
    case ForeignOutcome::mapped:
      if (row.together)
        given_.emplace(row.name, &node);
      else
        translate(row, node);
      break;
    case ForeignOutcome::unneeded:
      note(row.name, row.reason());
      break;
    case ForeignOutcome::refused:
      refuse(row, node);
      break;
    case ForeignOutcome::part:
      break;  // its section has been dealt with
  }
}

/// Type, and "auto" where somebody fills it in.
bool Importer::fits(const ForeignKey& row, const JsonNode& node) {
  if (node.is("auto") && row.type != ForeignType::text && row.type != ForeignType::any) {
    const ForeignKey& decides = table_.deciding(row);
    const Key* ours = row.outcome == ForeignOutcome::mapped ? find_key(row.ours) : nullptr;
    const bool of_a_switch = decides.name != row.name && decides.off == row.leaf();  // as false: the Trainer's default
    if (decides.outcome == ForeignOutcome::unneeded || of_a_switch || !row.automatic.empty() || (ours && ours->automatic != Auto::no))
      return true;
    add(node.place, std::string(row.name), fmt::format("\"auto\" is filled in by nobody here; give {}", expected(row.type)));
    return false;
  }
  if (is_of(row.type, node)) return true;
  const auto other = std::ranges::find(row.words, node.written, &std::pair<std::string_view, std::string_view>::first);
  std::string message = fmt::format("expected {}, got {}", expected(row.type), shortened(node.literal.str()));
  if (node.kind == JsonNode::Kind::text && row.type != ForeignType::section && row.type != ForeignType::list &&
      node.written.find_first_not_of("0123456789.eE+-truefalse") == std::string::npos)
    message += "; drop the quotes";
  else if (node.kind == JsonNode::Kind::text && other != row.words.end())
    message += fmt::format("; it is {} there", other->second);
  add(node.place, std::string(row.name), message);
  return false;
}

/// A section that is unneeded or refused as a whole.
void Importer::whole_section(const ForeignKey& row, const JsonNode& node) {
  if (!row.ours.empty() && overridden(row.ours)) return note(row.name, fmt::format("{} of the command line replaces it", row.ours));
  if (!row.open) check_names(node, std::string(row.name));
  if (row.outcome == ForeignOutcome::unneeded) return note(row.name, row.reason());
  if (const JsonNode* on = row.off.empty() ? nullptr : node.member(row.off); on && on->is("auto")) given_.emplace(row.name, on);
  if (is_off(row, node)) {
    const std::string gone = row.gone.empty() ? "" : fmt::format("; DeepSpeed itself refuses it since {}", row.gone);
    return note(row.name, "it is off" + gone);
  }
  add(row.off.empty() ? node.place : node.member(row.off)->place, std::string(row.name), row.reason());
}

void Importer::check_names(const JsonNode& object, const std::string& path) {
  for (const JsonNode& node : object.children) {
    const std::string name = joined(path, node.name);
    const ForeignKey* row = table_.find(name);
    if (!row)
      unknown(name, node);
    else if (node.kind != JsonNode::Kind::null)
      fits(*row, node);
  }
}

void Importer::refuse(const ForeignKey& row, const JsonNode& node) {
  if (beside_the_point(row))
    return note(row.name, fmt::format("it belongs to {}.type, which is another here", row.name.substr(0, row.name.find('.'))));
  if (node.is("auto") && !row.automatic.empty()) return note(row.name, fmt::format("auto: {} ({})", row.automatic, row.filled_by));
  if (!row.off.empty() && same_value(node, row.off)) return note(row.name, "as it is here");
  if (!row.ours.empty() && overridden(row.ours)) return note(row.name, fmt::format("{} of the command line replaces it", row.ours));
  add(node.place, std::string(row.name), fmt::format("{} is refused: {}", shortened(node.literal.str()), row.reason()));
}

bool Importer::beside_the_point(const ForeignKey& row) const {
  return std::ranges::any_of(foreign_, [&](const std::string& what) { return row.name.starts_with(what + ".params."); });
}

void Importer::translate(const ForeignKey& row, const JsonNode& node) {
  const Key& ours = *find_key(row.ours);
  const bool filled = ours.automatic != Auto::no || !row.automatic.empty();  // else a text of no meaning, which the deck's key refuses
  if (!node.is("auto") || !filled) return put(row.ours, deck_value(ours, row, node), row.name);
  if (ours.automatic != Auto::no) return put(row.ours, "\"auto\"", row.name, "auto, as the Trainer fills it");
  put(row.ours, std::string(row.automatic), row.name, fmt::format("auto: {}", row.filled_by));
}

void Importer::unknown(const std::string& name, const JsonNode& node) {
  const std::string section = name.substr(0, name.size() - node.name.size());  // with its dot
  std::vector<std::string_view> here;
  std::string_view elsewhere;
  for (const ForeignKey& key : table_.rows) {
    if (key.name.starts_with(section)) {
      const std::string_view below = key.name.substr(section.size());
      here.push_back(below.substr(0, below.find('.')));
    }
    if (!elsewhere.empty()) continue;
    if (key.leaf() == node.name && key.outcome != ForeignOutcome::part) elsewhere = key.name;
    // A section of keys, as offload_optimizer is.
    const std::string inside = fmt::format(".{}.", node.name);
    if (const std::size_t at = key.name.find(inside); at != key.name.npos) elsewhere = key.name.substr(0, at + inside.size() - 1);
  }
  std::string message = fmt::format("is not a key of {}'s", table_.owner);
  const auto meant = std::ranges::find(table_.misnamed, name, &std::pair<std::string_view, std::string_view>::first);
  if (meant != table_.misnamed.end())
    message += fmt::format("; {}", meant->second);
  else if (const std::string_view near = nearest(node.name, here); !near.empty())
    message += fmt::format("; did you mean {}?", near);
  else if (!elsewhere.empty())
    message += fmt::format(" in this place; {} is", elsewhere);
  else
    message += fmt::format("; leave it out (`{}` lists them all)", table_.command);
  add(node.name_place, shortened(name), message);
}

void Importer::put(std::string_view ours, const std::string& value, std::string_view theirs, const std::string& comment) {
  const auto it = places_.find(theirs);
  const JsonPlace place = it == places_.end() ? JsonPlace{} : it->second;
  ImportedLine line{value, fmt::format("from {}{}{}", theirs, comment.empty() ? "" : "; ", comment), std::string(theirs), file_, place};
  const auto [old, is_new] = lines_.emplace(ours, line);
  if (is_new) return;
  if (old->second.from.empty()) {
    old->second = line;
  } else if (old->second.value != value) {
    fault(theirs, fmt::format("sets {} to {}, and {} sets {}; leave one of the two out", value, ours, old->second.from, old->second.value));
  }
}

void Importer::assume(std::string_view ours, const std::string& value, const std::string& comment) {
  lines_.emplace(ours, ImportedLine{value, comment, "", "", {}});
}

const JsonNode* Importer::given(std::string_view theirs) const {
  const auto it = given_.find(theirs);
  return it == given_.end() ? nullptr : it->second;
}

std::string Importer::override_of(std::string_view ours) const {
  const auto it = overridden_.find(std::string(ours));
  return it == overridden_.end() ? "" : it->second;
}

std::string Importer::word_of(std::string_view theirs) const {
  const JsonNode* node = given(theirs);
  if (!node) return "";
  const std::string word = lower_case(node->written);
  for (const auto& [there, ours] : row(theirs).words)
    if (there == word) return std::string(ours);
  return word;
}

const ImportedLine* Importer::line(std::string_view ours) const {
  const auto it = lines_.find(ours);
  return it == lines_.end() ? nullptr : &it->second;
}

void Importer::fault(std::string_view theirs, const std::string& message) {
  const auto it = places_.find(theirs), null = nulls_.find(theirs);
  add(it != places_.end() ? it->second : null != nulls_.end() ? null->second : JsonPlace{}, std::string(theirs), message);
}

void Importer::note(std::string_view theirs, std::string_view why) { notes_.emplace_back(theirs, why); }

void Importer::add(JsonPlace place, const std::string& key, const std::string& message) {
  faults_.push_back({file_, place.line, place.column, key, message});
}

}  // namespace tessera
