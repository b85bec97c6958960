// Goes through a configuration key by key, by the table.
#include "deck/import/importer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/regular_file.hpp"
#include "deck/hints.hpp"

namespace tessera {
namespace {

constexpr std::int64_t most_configuration_bytes = 1 << 20;

std::string joined(const std::string& path, const std::string& name) { return path.empty() ? name : path + "." + name; }

/// `bfloat16` is an older name of a section.
std::string canonical(const std::string& name) {
  return name == "bfloat16" ? "bf16" : name.starts_with("bfloat16.") ? "bf16" + name.substr(8) : name;
}

/// A switch that is off, or switches further in that all are: a section that is there and does nothing.
bool is_off(const DeepSpeedKey& row, const JsonNode& node) {
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

const char* expected(DeepSpeedType type) {
  switch (type) {
    case DeepSpeedType::integer:
      return "a whole number";
    case DeepSpeedType::real:
      return "a number";
    case DeepSpeedType::boolean:
      return "true or false";
    case DeepSpeedType::text:
      return "a text";
    case DeepSpeedType::list:
      return "a list [ ... ]";
    case DeepSpeedType::section:
      return "an object { ... }";
    case DeepSpeedType::any:
      break;
  }
  return "a value";
}

bool is_of(DeepSpeedType type, const JsonNode& node) {
  using Kind = JsonNode::Kind;
  switch (type) {
    case DeepSpeedType::integer:  // also 5e8
      return node.kind == Kind::integer ||
             (node.kind == Kind::real && std::abs(node.number()) < 9e18 && node.number() == std::floor(node.number()));
    case DeepSpeedType::real:
      return node.kind == Kind::integer || node.kind == Kind::real;
    case DeepSpeedType::boolean:
      return node.kind == Kind::boolean;
    case DeepSpeedType::text:
      return node.kind == Kind::text;
    case DeepSpeedType::list:
      return node.kind == Kind::list;
    case DeepSpeedType::section:
      return node.kind == Kind::object;
    case DeepSpeedType::any:
      return true;
  }
  return false;
}

/// What stands after `=` in a deck.
std::string deck_value(const Key& ours, const DeepSpeedKey& row, const JsonNode& node) {
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

Importer::Importer(const ImportRequest& request) : request_(request) {
  for (const std::string& text : request.overrides) {
    std::string name = text.substr(0, text.find('='));
    name.erase(0, name.find_first_not_of(" \t"));
    name.erase(name.find_last_not_of(" \t") + 1);
    if (find_key(name)) overridden_.insert(name);
  }
}

void Importer::walk(const JsonNode& root) {
  const auto type_is = [&](const char* name, std::initializer_list<std::string_view> known) {
    const JsonNode* node = root.member(name);
    const JsonNode* type = node ? node->member("type") : nullptr;
    return !type || std::ranges::find(known, lower_case(type->written)) != known.end();
  };
  if (!type_is("optimizer", {"adam", "adamw", "deepspeedcpuadam"})) foreign_.insert("optimizer");
  if (!type_is("scheduler", {"warmuplr", "warmupdecaylr", "warmupcosinelr"})) foreign_.insert("scheduler");
  walk_section(root, "");
}

void Importer::walk_section(const JsonNode& object, const std::string& path) {
  for (const JsonNode& node : object.children) {
    const std::string written = joined(path, node.name), name = canonical(written);
    const DeepSpeedKey* row = find_deepspeed_key(name);
    if (!row && !is_deepspeed_section(name)) {
      unknown(written, node);
      continue;
    }
    if (node.kind == JsonNode::Kind::null) continue;  // as if it were not there
    if (!places_.emplace(name, node.place).second) {
      if (written != name) add(node.name_place, written, "is another name of bf16, which is there too; leave one of the two out");
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

void Importer::one(const DeepSpeedKey& row, const JsonNode& node) {
  if (!fits(row, node)) return;
  if (row.type == DeepSpeedType::section) return whole_section(row, node);
  switch (row.outcome) {
    case DeepSpeedOutcome::mapped:
      if (row.together)
        given_.emplace(row.name, &node);
      else
        translate(row, node);
      break;
    case DeepSpeedOutcome::unneeded:
      note(row.name, row.says);
      break;
    case DeepSpeedOutcome::refused:
      refuse(row, node);
      break;
    case DeepSpeedOutcome::part:
      break;  // its section has been dealt with
  }
}

/// Type, and "auto" where somebody fills it in.
bool Importer::fits(const DeepSpeedKey& row, const JsonNode& node) {
  if (node.is("auto") && row.type != DeepSpeedType::text && row.type != DeepSpeedType::any) {
    const DeepSpeedKey& decides = deciding_row(row);
    const Key* ours = row.outcome == DeepSpeedOutcome::mapped ? find_key(row.ours) : nullptr;
    const bool of_a_switch = decides.name != row.name && decides.off == row.leaf();  // as false: the Trainer's default
    if (decides.outcome == DeepSpeedOutcome::unneeded || of_a_switch || !row.automatic.empty() || (ours && ours->automatic != Auto::no))
      return true;
    add(node.place, std::string(row.name), fmt::format("\"auto\" is filled in by nobody here; give {}", expected(row.type)));
    return false;
  }
  if (is_of(row.type, node)) return true;
  std::string message = fmt::format("expected {}, got {}", expected(row.type), shortened(node.literal.str()));
  if (node.kind == JsonNode::Kind::text && row.type != DeepSpeedType::section && row.type != DeepSpeedType::list &&
      node.written.find_first_not_of("0123456789.eE+-truefalse") == std::string::npos)
    message += "; drop the quotes";
  add(node.place, std::string(row.name), message);
  return false;
}

/// A section that is unneeded or refused as a whole.
void Importer::whole_section(const DeepSpeedKey& row, const JsonNode& node) {
  if (!row.open) check_names(node, std::string(row.name));
  if (row.outcome == DeepSpeedOutcome::unneeded) return note(row.name, row.says);
  if (const JsonNode* on = row.off.empty() ? nullptr : node.member(row.off); on && on->is("auto")) given_.emplace(row.name, on);
  if (is_off(row, node)) return note(row.name, "it is off");
  if (!row.ours.empty() && overridden(row.ours)) return note(row.name, fmt::format("{} of the command line takes its place", row.ours));
  add(row.off.empty() ? node.place : node.member(row.off)->place, std::string(row.name), std::string(row.says));
}

void Importer::check_names(const JsonNode& object, const std::string& path) {
  for (const JsonNode& node : object.children) {
    const std::string name = joined(path, node.name);
    const DeepSpeedKey* row = find_deepspeed_key(name);
    if (!row)
      unknown(name, node);
    else if (node.kind != JsonNode::Kind::null)
      fits(*row, node);
  }
}

void Importer::refuse(const DeepSpeedKey& row, const JsonNode& node) {
  if (beside_the_point(row))
    return note(row.name, fmt::format("it goes with {}.type, which is another here", row.name.substr(0, row.name.find('.'))));
  if (node.is("auto") && !row.automatic.empty()) return note(row.name, fmt::format("auto: {} ({})", row.automatic, row.filled_by));
  if (!row.off.empty() && same_value(node, row.off)) return note(row.name, "as it is here");
  add(node.place, std::string(row.name), fmt::format("{} is refused: {}", shortened(node.literal.str()), row.says));
}

bool Importer::beside_the_point(const DeepSpeedKey& row) const {
  return std::ranges::any_of(foreign_, [&](const std::string& what) { return row.name.starts_with(what + ".params."); });
}

void Importer::translate(const DeepSpeedKey& row, const JsonNode& node) {
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
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    if (key.name.starts_with(section)) {
      const std::string_view below = key.name.substr(section.size());
      here.push_back(below.substr(0, below.find('.')));
    }
    if (!elsewhere.empty()) continue;
    if (key.leaf() == node.name && key.outcome != DeepSpeedOutcome::part) elsewhere = key.name;
    // A section of keys, as offload_optimizer is.
    const std::string inside = fmt::format(".{}.", node.name);
    if (const std::size_t at = key.name.find(inside); at != key.name.npos) elsewhere = key.name.substr(0, at + inside.size() - 1);
  }
  std::string message = "is not a key of DeepSpeed's";
  if (const std::string_view near = nearest(node.name, here); !near.empty())
    message += fmt::format("; did you mean {}?", near);
  else if (!elsewhere.empty())
    message += fmt::format(" in this place; {} is", elsewhere);
  else
    message += "; leave it out (`tessera deck import --keys` lists them all)";
  add(node.name_place, shortened(name), message);
}

void Importer::put(std::string_view ours, const std::string& value, std::string_view theirs, const std::string& comment) {
  const auto it = places_.find(theirs);
  const JsonPlace place = it == places_.end() ? JsonPlace{} : it->second;
  ImportedLine line{value, fmt::format("from {}{}{}", theirs, comment.empty() ? "" : "; ", comment), std::string(theirs), place};
  const auto [old, is_new] = lines_.emplace(ours, line);
  if (is_new) return;
  if (old->second.from.empty()) {
    old->second = line;
  } else if (old->second.value != value) {
    fault(theirs, fmt::format("says {} of {}, and {} says {}; leave one of the two out", value, ours, old->second.from, old->second.value));
  }
}

void Importer::assume(std::string_view ours, const std::string& value, const std::string& comment) {
  lines_.emplace(ours, ImportedLine{value, comment, "", {}});
}

const JsonNode* Importer::given(std::string_view theirs) const {
  const auto it = given_.find(theirs);
  return it == given_.end() ? nullptr : it->second;
}

const ImportedLine* Importer::line(std::string_view ours) const {
  const auto it = lines_.find(ours);
  return it == lines_.end() ? nullptr : &it->second;
}

void Importer::fault(std::string_view theirs, const std::string& message) {
  const auto it = places_.find(theirs);
  add(it == places_.end() ? JsonPlace{} : it->second, std::string(theirs), message);
}

void Importer::note(std::string_view theirs, std::string_view why) { notes_.emplace_back(theirs, why); }

void Importer::add(JsonPlace place, const std::string& key, const std::string& message) {
  faults_.push_back({request_.path, place.line, place.column, key, message});
}

ImportedDeck import_deepspeed_text(const std::string& text, const ImportRequest& request) {
  ImportedDeck out;
  JsonNode root;
  const bool whole = read_json(text, request.path, root, out.faults);
  ModelSource model = read_model(request.model, out.faults);
  if (model.model.tied && request.own_head && request.own_head(request.model)) take_own_head(model, request.model);
  if (model.output_bias)
    out.faults.push_back(
        {request.model, 0, 0, "attention_bias", "a bias on the attention's output is not in this version; set it to false"});
  if (!whole) return out;
  Importer in(request);
  in.put_model(model);
  in.walk(root);
  import_batch(in);
  import_precision(in);
  import_optimizer(in);
  import_schedule(in);
  import_activation(in);
  import_rest(in);
  ImportedDeck made =
      in.finish(fmt::format("Made of {}, a configuration of DeepSpeed, by `tessera deck import`.", toml_string(request.path)));
  out.faults.insert(out.faults.end(), made.faults.begin(), made.faults.end());
  out.text = out.faults.empty() ? made.text : "";
  out.notes = model.notes;
  return out;
}

ImportedDeck import_deepspeed(const ImportRequest& request) {
  std::string text, why;
  if (!read_regular(request.path, most_configuration_bytes, text, why)) return {"", {{request.path, 0, 0, "", why}}};
  return import_deepspeed_text(text, request);
}

}  // namespace tessera
