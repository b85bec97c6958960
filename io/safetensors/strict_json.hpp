// JSON in which a name that stands twice in an object is a fault: a parser takes the last of two values, and others may take the first.
#pragma once
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>

#include "base/printable.hpp"

namespace tessera::io {

/// Throws what nlohmann's parser throws, or std::runtime_error.
inline nlohmann::ordered_json parse_strict_json(const std::string& text) {
  using Json = nlohmann::ordered_json;
  std::map<int, std::set<std::string>> names;  // by depth, of the object that is open there
  return Json::parse(text, [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) names[depth + 1].clear();
    if (event == Json::parse_event_t::key && !names[depth].insert(parsed.get<std::string>()).second)
      throw std::runtime_error(fmt::format("{} stands there twice", printable_name(parsed.get<std::string>())));
    return true;
  });
}

}  // namespace tessera::io
