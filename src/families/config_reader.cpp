#include "families/config_reader.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "families/activation.hpp"

namespace tessera {

const JsonNode* ConfigReader::find(std::string_view key) {
  known_.emplace(key);
  return root_.member(key);
}

bool ConfigReader::is_null(const JsonNode& object, std::string_view key) {
  return std::ranges::any_of(object.children, [&](const JsonNode& c) { return c.name == key && c.kind == JsonNode::Kind::null; });
}

/// A key that two rows read is at fault once.
void ConfigReader::add(const Fault& fault) {
  if (said_.insert(fault.str()).second) faults_.push_back(fault);
}

void ConfigReader::fault(std::string_view key, const std::string& message) {
  const JsonNode* node = root_.member(key);
  add({file_, node ? node->place.line : 0, node ? node->place.column : 0, std::string(key), message});
}
void ConfigReader::fault(const JsonNode& node, const std::string& message) {
  add({file_, node.place.line, node.place.column, shortened(node.name), message});
}
void ConfigReader::fault_at_name(const JsonNode& node, const std::string& message) {
  add({file_, node.name_place.line, node.name_place.column, shortened(node.name), message});
}
void ConfigReader::wrong(const JsonNode& node, const char* expected) {
  fault(node, fmt::format("expected {}, got {}", expected, shortened(node.literal.str())));
}

std::int64_t ConfigReader::whole(const JsonNode& node) {
  if (const auto* value = std::get_if<std::int64_t>(&node.literal.value)) return *value;
  return wrong(node, "an integer"), 0;
}
double ConfigReader::number(const JsonNode& node) {
  if (node.kind == JsonNode::Kind::integer || node.kind == JsonNode::Kind::real) return node.number();
  return wrong(node, "a number"), 0;
}
bool ConfigReader::truth(const JsonNode& node, bool standard) {
  if (const auto* value = std::get_if<bool>(&node.literal.value)) return *value;
  return wrong(node, "true or false"), standard;
}

std::int64_t ConfigReader::whole(std::string_view key, std::int64_t standard) {
  const JsonNode* node = find(key);
  return node ? whole(*node) : standard;
}
std::int64_t ConfigReader::needed(std::string_view key) {
  const JsonNode* node = find(key);
  if (!node) return fault(key, "is missing"), 0;
  return whole(*node);
}
double ConfigReader::real(std::string_view key, double standard) {
  const JsonNode* node = find(key);
  return node ? number(*node) : standard;
}
bool ConfigReader::truth(std::string_view key, bool standard) {
  const JsonNode* node = find(key);
  return node ? truth(*node, standard) : standard;
}
std::string ConfigReader::text(std::string_view key, const std::string& standard) {
  const JsonNode* node = find(key);
  if (!node) return standard;
  if (node->kind == JsonNode::Kind::text) return node->written;
  return wrong(*node, "a text"), standard;
}

Activation ConfigReader::activation(const JsonNode& node, const ModelKeys& standard) {
  const auto known = activation_named(node.written);
  const auto [taken, words] = known_activations(standard);
  if (known && std::ranges::find(taken, *known) != taken.end()) return *known;
  return fault(node, fmt::format("{} is not in this version; {} are", shortened(node.literal.str()), words)), standard.activation;
}

std::vector<std::string> ConfigReader::notes() const {
  if (unused_.empty()) return {};
  return {fmt::format("{}: not used: {}", file_, fmt::join(unused_, ", "))};
}

}  // namespace tessera
