// Asks a config.json for its keys: what is missing or of another kind goes to the faults, with its place, and what was asked for is known.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "deck/deck.hpp"
#include "deck/schema/json_tree.hpp"

namespace tessera {

class ConfigReader {
 public:
  ConfigReader(const JsonNode& root, const std::string& file, std::vector<Fault>& faults) : root_(root), file_(file), faults_(faults) {}

  const std::vector<JsonNode>& members() const { return root_.children; }
  /// nullptr where it is absent or null; either way it is known from now on.
  const JsonNode* find(std::string_view key);
  bool knows(std::string_view key) const { return known_.contains(key); }
  static bool is_null(const JsonNode& object, std::string_view key);
  bool is_null(std::string_view key) const { return is_null(root_, key); }

  void fault(std::string_view key, const std::string& message);
  void fault(const JsonNode& node, const std::string& message);
  void fault_at_name(const JsonNode& node, const std::string& message);
  void wrong(const JsonNode& node, const char* expected);

  /// The value of a node; of the wrong kind it is a fault, and 0 or false.
  std::int64_t whole(const JsonNode& node);
  double number(const JsonNode& node);
  bool truth(const JsonNode& node, bool standard = false);
  /// The value of a key, or `standard` where there is none.
  std::int64_t whole(std::string_view key, std::int64_t standard);
  std::int64_t needed(std::string_view key);  ///< without the key a fault, and 0
  double real(std::string_view key, double standard);
  bool truth(std::string_view key, bool standard);
  Activation activation(const JsonNode& node, const ModelKeys& standard);
  std::string text(std::string_view key, const std::string& standard);

  /// What is known, and says nothing of the model.
  void unused(const std::string& what) { unused_.push_back(what); }
  /// A line that names it; nothing where there is none.
  std::vector<std::string> notes() const;

 private:
  void add(const Fault& fault);

  const JsonNode& root_;
  const std::string& file_;
  std::vector<Fault>& faults_;
  std::set<std::string, std::less<>> known_;
  std::set<std::string> said_;  ///< faults
  std::vector<std::string> unused_;
};

struct RotationRule;

/// The rotation of a config.json: rope_theta, rope_scaling and rope_parameters. Of layers with windows too, as they are rotated by the
/// rule.
struct WindowRotation {
  double theta = 0;
  RopeMode scaling = RopeMode::none;
};
WindowRotation read_rotation(ConfigReader& config, const RotationRule& rule, ModelKeys& model);

}  // namespace tessera
