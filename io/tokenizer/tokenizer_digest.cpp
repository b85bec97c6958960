#include "io/tokenizer/tokenizer_digest.hpp"

#include <algorithm>
#include <charconv>
#include <set>
#include <vector>

#include "base/hash.hpp"
#include "base/json.hpp"
#include "io/tokenizer/tokenizer_class.hpp"

namespace tessera::io {
namespace {

constexpr std::size_t file_digits = 32, settings_digits = 16;

/// What makes an added token: its text, which blanks it takes with it, and whether it is looked for in the normalized text.
Json parts_of(const Json& token, bool special) {
  const auto flag = [&](const char* key, bool usual) {
    return token.is_object() && token.contains(key) && token[key].is_boolean() ? token[key].get<bool>() : usual;
  };
  special = flag("special", special) || special;
  return {token.is_object() ? token.value("content", Json()) : token,
          flag("lstrip", false),
          flag("rstrip", false),
          flag("single_word", false),
          flag("normalized", !special),
          special};
}

/// Members of an object or elements of a list; of anything else itself.
std::vector<Json> values_of(const Json& some) {
  std::vector<Json> values;
  if (some.is_object())
    for (const auto& [key, value] : some.items()) values.push_back(value);
  else if (some.is_array())
    values.assign(some.begin(), some.end());
  else
    values.push_back(some);
  return values;
}

/// Tokens that tokenizer.json lacks or has otherwise, in an order that their numbers follow from.
Json tokens_beside(const TokenizerFiles& files, const Json& named) {
  std::set<std::string> texts, whole;
  Json more = Json::array();
  const auto add = [&](const Json& token, bool special) {
    const Json parts = parts_of(token, special);
    if (whole.insert(parts.dump(-1, BadText::replace)).second) more.push_back(parts);
    texts.insert(parts[0].dump(-1, BadText::replace));
  };
  for (const Json& token : values_of(Json::try_parse(member_text(files.tokenizer, "added_tokens")).value_or(Json::array())))
    add(token, false);
  more = Json::array();
  if (named.contains("added_tokens_decoder") && named["added_tokens_decoder"].is_object()) {
    std::vector<std::pair<std::int64_t, const Json*>> listed;
    for (const auto& [number, token] : named["added_tokens_decoder"].items()) {
      std::int64_t value = 0;
      std::from_chars(number.data(), number.data() + number.size(), value);
      listed.emplace_back(value, &token);
    }
    std::ranges::stable_sort(listed, {}, [](const auto& one) { return one.first; });
    for (const auto& [number, token] : listed) add(*token, false);
  }
  for (const auto& [key, value] : named.items()) {
    const bool list = key == "extra_special_tokens" || key == "additional_special_tokens";
    if (!list && !key.ends_with("_token")) continue;
    for (const Json& token : list ? values_of(value) : std::vector{value}) {
      const Json text = parts_of(token, true)[0];
      if (text.is_string() && !text.text().empty() && !texts.contains(text.dump(-1, BadText::replace))) add(token, true);
    }
  }
  return more;
}

std::string settings_text(const TokenizerFiles& files) {
  const TokenizerClass* const built = find_tokenizer_class(files);
  const bool known = files.config.is_object();
  Json settings = Json::object(), named = built ? built->tokens : Json::object();
  if (known) named.update(files.config);
  const auto is_true = [&](const char* key, bool usual) {
    return named.contains(key) && !named[key].is_null() ? named[key] == true : usual;
  };
  if (built) {
    settings["class"] = built->name;
    settings["add_prefix_space"] = is_true("add_prefix_space", built->before_text);
    if (built->reads_legacy) settings["legacy"] = is_true("legacy", false);
    if (built->reads_unknown) settings["unk_token"] = parts_of(named["unk_token"], true)[0];
    if (!built->framed_by.empty()) settings["framed_by"] = parts_of(named[built->framed_by], true)[0];
  }
  if (is_true("split_special_tokens", false)) settings["split_special_tokens"] = true;
  if (!known) settings["unread"] = files.config;
  settings["tokens"] = tokens_beside(files, named);
  return settings.dump(-1, BadText::replace);
}

std::string_view file_part(std::string_view digest) { return digest.substr(0, file_digits); }
std::string_view settings_part(std::string_view digest) { return has_tokenizer_settings(digest) ? digest.substr(file_digits + 1) : ""; }

}  // namespace

std::string tokenizer_digest(const TokenizerFiles& files) {
  return hash_text(files.tokenizer).hex() + "-" + hash_text(settings_text(files)).hex().substr(0, settings_digits);
}

std::string tokenizer_digest(const std::string& folder) { return tokenizer_digest(read_tokenizer_files(folder)); }

bool is_tokenizer_digest(std::string_view text) {
  const auto digits = [](std::string_view part) { return part.find_first_not_of("0123456789abcdef") == part.npos; };
  if (text.size() == file_digits) return digits(text);
  return text.size() == file_digits + 1 + settings_digits && text[file_digits] == '-' && digits(file_part(text)) &&
         digits(text.substr(file_digits + 1));
}

bool has_tokenizer_settings(std::string_view digest) { return digest.size() > file_digits; }

bool may_be_same_tokenizer(std::string_view a, std::string_view b) {
  if (!has_tokenizer_settings(a) || !has_tokenizer_settings(b)) return file_part(a) == file_part(b);
  return a == b;
}

std::string first_digits(std::string_view digest) {
  const std::string first(digest.substr(0, 8));
  return has_tokenizer_settings(digest) ? first + "-" + std::string(settings_part(digest).substr(0, 8)) : first;
}

std::string settings_differ(std::string_view a, std::string_view b) {
  return file_part(a) != file_part(b)
             ? ""
             : " tokenizer.json is the same; what differs is in tokenizer_config.json, special_tokens_map.json or config.json.";
}

}  // namespace tessera::io
