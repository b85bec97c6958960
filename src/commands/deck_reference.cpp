#include "commands/deck_reference.hpp"

#include <utility>

#include "base/json.hpp"
#include "deck/schema/value.hpp"

namespace tessera {
namespace {

const char* type_name(KeyType type) {
  switch (type) {
    case KeyType::integer:
      return "integer";
    case KeyType::elements:
      return "elements";
    case KeyType::bytes:
      return "bytes";
    case KeyType::duration:
      return "duration";
    case KeyType::real:
      return "real";
    case KeyType::boolean:
      return "boolean";
    case KeyType::text:
      return "text";
    case KeyType::texts:
      return "texts";
    case KeyType::paths:
      return "paths";
    case KeyType::integers:
      return "integers";
    case KeyType::reals:
      return "reals";
    case KeyType::groups:
      return "groups";
    case KeyType::phases:
      return "phases";
    case KeyType::kinds:
      return "kinds";
    case KeyType::toggle:
      return "toggle";
    case KeyType::counted:
      return "counted";
  }
  return "";
}

Json limits_json(const Limits& limits) {
  auto all = Json::object();
  for (const auto& [name, limit] : {std::pair("least", limits.least), std::pair("above", limits.above), std::pair("most", limits.most),
                                    std::pair("below", limits.below)})
    if (limit) all[name] = *limit;
  return all;
}

}  // namespace

std::string reference_json() {
  auto keys = Json::array();
  for (const Key& key : deck_keys()) {
    auto refused = Json::object();
    for (const auto& [value, reason] : key.refused) refused[std::string(value)] = reason;
    keys.push_back({{"key", key.name},
                    {"type", type_name(key.type)},
                    {"unit", key.unit},
                    {"choices", key.choices},
                    {"auto", key.automatic != Auto::no},
                    {"zero", key.zero},
                    {"limits", limits_json(key.limits)},
                    {"default", default_text(key)},
                    {"required", key.required},
                    {"identity", key.identity},
                    {"refused", refused},
                    {"meaning", key.help}});
  }
  return keys.dump(2) + "\n";
}

}  // namespace tessera
