// Every key of a config.json has a meaning here, or is known to have none, or is refused by name.
#include "families/read_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "families/config_reader.hpp"
#include "families/family.hpp"
#include "families/known_keys.hpp"
#include "families/layers.hpp"
#include "families/refused.hpp"
#include "families/text_part.hpp"

namespace tessera {
namespace {

using namespace huggingface;

/// One family's file.
class FamilyReader {
 public:
  FamilyReader(ConfigReader& config, const Family& family) : config_(config), family_(family) {}

  ModelSource read(const std::string& file) {
    ModelKeys m = family_.standard;
    read_keys(m, family_.first_keys());
    const bool usual = family_.own_keys.empty();
    const auto said = [&](const char* key) { return usual && config_.find(key); };
    if (!said("num_key_value_heads") && (config_.is_null("num_key_value_heads") || m.kv_heads == 0)) m.kv_heads = m.heads;
    if (!said("head_dim") && (config_.is_null("head_dim") || m.head_dim == 0)) m.head_dim = m.heads > 0 ? m.width / m.heads : 0;
    m.init_std = config_.real("initializer_range", m.init_std);
    if (family_.output_bias) m.qkv_bias = m.attention_out_bias = config_.truth("attention_bias", false);
    read_keys(m, family_.keys);
    const WindowRotation rotation = usual ? read_rotation(config_, family_.rotation, m) : WindowRotation{};
    if (family_.read_model) family_.read_model(config_, m);
    const std::int64_t context =
        m.learned_positions > 0 ? m.learned_positions : config_.whole("max_position_embeddings", family_.standard.max_context);
    m.max_context = 0;
    check_token_ids();
    const std::int64_t further = read_further_layers();
    refuse_others();
    read_layers(m, rotation);
    check_architecture();
    refuse_unknown();
    return {.model = m,
            .context = context,
            .from = fmt::format("{}, {}", family_.type, toml_string(file)),
            .architecture = std::string(family_.architecture),
            .family = &family_,
            .further_layers = further,
            .notes = config_.notes()};
  }

 private:
  void read_keys(ModelKeys& m, std::span<const FamilyKey> keys) {
    for (const FamilyKey& key : keys) read_key(m, key);
    for (const FamilyKey& key : keys)
      if (key.required && !has_standard(key) && !config_.find(key.name) && (key.also.empty() || !config_.find(key.also)))
        config_.fault(key.name, "is missing");
  }

  /// Its class has a model's size by itself.
  bool has_standard(const FamilyKey& key) const {
    const auto* whole = std::get_if<std::int64_t ModelKeys::*>(&key.field);
    return whole && family_.standard.**whole > 0;
  }

  void read_key(ModelKeys& m, const FamilyKey& key) {
    if (const auto* field = std::get_if<std::int64_t ModelKeys::*>(&key.field)) return read_whole(m.**field, key);
    if (key.field.index() == 0 && key.why.empty()) return;
    const JsonNode* node = config_.find(key.name);
    if (!node) return;
    if (const auto* real = std::get_if<double ModelKeys::*>(&key.field)) m.** real = config_.number(*node);
    if (const auto* truth = std::get_if<bool ModelKeys::*>(&key.field)) m.** truth = config_.truth(*node);
    if (const auto* activation = std::get_if<Activation ModelKeys::*>(&key.field))
      m.** activation = config_.activation(*node, family_.standard);
    const bool empty = node->kind == JsonNode::Kind::list && node->children.empty();
    if (!key.why.empty() && (empty ? "[]" : node->literal.str()) != key.fixed) config_.fault(*node, std::string(key.why));
  }

  void read_whole(std::int64_t& value, const FamilyKey& key) {
    const JsonNode *node = config_.find(key.name), *other = key.also.empty() ? nullptr : config_.find(key.also);
    if (node) value = config_.whole(*node);
    if (!other) return;
    if (!node)
      value = config_.whole(*other);
    else if (config_.whole(*other) != value)
      config_.fault(*other, fmt::format("is not {}; leave one of the two out", key.name));
  }

  /// Exports carry them.
  void check_token_ids() {
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
      const JsonNode* node = config_.find(key);
      const auto is_id = [](const JsonNode& one) { return one.kind == JsonNode::Kind::integer; };
      if (node && !is_id(*node) && !(node->kind == JsonNode::Kind::list && std::ranges::all_of(node->children, is_id)))
        config_.wrong(*node, "the number of a token, or a list of such");
    }
  }

  /// Code that a model brings, by the names of the class that it became: "modeling_phi3.Phi3ForCausalLM" of a Phi3ForCausalLM.
  bool is_class_of_transformers(const JsonNode& auto_map) {
    const std::string_view name = family_.architecture.substr(0, family_.architecture.find("ForCausalLM"));
    const auto is_it = [&](const JsonNode& one) {
      const std::string_view text = one.written;
      return one.name == "AutoTokenizer" || text.substr(text.rfind('.') + 1).starts_with(name);
    };
    if (!family_.own_code || auto_map.kind != JsonNode::Kind::object || !std::ranges::all_of(auto_map.children, is_it)) return false;
    config_.unused("auto_map (its code is assumed to be transformers' own class)");
    return true;
  }

  bool is_mxfp4(const JsonNode& quantization) {
    const JsonNode* method = family_.mxfp4 && quantization.kind == JsonNode::Kind::object ? quantization.member("quant_method") : nullptr;
    if (!method || !method->is("mxfp4")) return false;
    config_.unused("quantization_config (weights of experts are decoded from MXFP4, and are not quantised again)");
    return true;
  }

  std::int64_t read_further_layers() {
    if (family_.further_layers == 0) return 0;
    for (const char* key : {"num_nextn_predict_layers", "num_mtp_layers"}) {
      const JsonNode* node = config_.find(key);
      if (!node) continue;
      const std::int64_t layers = config_.whole(*node);
      if (layers > 0) config_.unused(fmt::format("{} (layers that predict further tokens are left out, and an export has none)", key));
      return layers;
    }
    return family_.further_layers;
  }

  bool has_key(std::string_view key) const { return std::ranges::find(family_.keys, key, &FamilyKey::name) != family_.keys.end(); }
  /// Whether the key says something of the family's models.
  bool reads(std::string_view key) const {
    return std::ranges::any_of(family_.keys, [&](const FamilyKey& row) { return row.name == key && row.field.index() != 0; });
  }

  void refuse_others() {
    if (family_.own_keys.empty() && !family_.output_bias && !reads("attention_bias") && config_.truth("attention_bias", false))
      config_.fault("attention_bias", "a bias on the attention's output is not in this version");
    if (family_.own_keys.empty() && !reads("mlp_bias") && config_.truth("mlp_bias", false))
      config_.fault("mlp_bias", "biases in the feed-forward block of this model_type are not in this version");
    for (const Refused& row : refused_keys)
      if (config_.find(row.key) && !(row.key == "auto_map" && is_class_of_transformers(*config_.find(row.key))) &&
          !(row.key == "quantization_config" && is_mxfp4(*config_.find(row.key))))
        config_.fault(row.key, std::string(row.why));
    for (const Idle& row : idle) {
      const JsonNode* node = config_.find(row.key);
      if (!node || (family_.dropout && has_key(row.key)) || (family_.rotation.partial && row.key == "partial_rotary_factor") ||
          (family_.further_layers > 0 && (row.key == "num_nextn_predict_layers" || row.key == "num_mtp_layers")))
        continue;
      const auto* flag = std::get_if<bool>(&node->literal.value);
      if ((flag ? static_cast<double>(*flag) : config_.number(*node)) != row.value) config_.fault(*node, std::string(row.why));
    }
  }

  void read_layers(ModelKeys& m, const WindowRotation& rotation) {
    constexpr std::int64_t most = 10'000;  // what a deck may have: a list of more would only take memory
    config_.find("layer_types");           // a key of the class, also where it cannot be read
    if (m.layers < 1 || m.layers > most) return;
    std::vector<LayerKeys> layers(static_cast<std::size_t>(m.layers), {.rope_theta = m.rope_theta, .rope_scaling = m.rope_scaling});
    for (std::int64_t i = 0; i < m.layers; ++i) layers[static_cast<std::size_t>(i)].experts = m.has_experts(i) || m.experts == 0;
    read_windows(config_, family_.window, layers);
    if (family_.read_layers) family_.read_layers(config_, layers);
    if (family_.rotation.by_window) rotate_windows(m, rotation, layers);
    set_layers(m, layers);
  }

  /// What [model] says is of the layers that see all keys, where there is one.
  static void rotate_windows(ModelKeys& m, const WindowRotation& rotation, std::vector<LayerKeys>& layers) {
    const auto has_window = [](const LayerKeys& keys) { return keys.window > 0; };
    if (std::ranges::all_of(layers, has_window)) m.rope_theta = rotation.theta, m.rope_scaling = rotation.scaling;
    for (LayerKeys& keys : layers)
      if (has_window(keys)) keys.rope_theta = rotation.theta, keys.rope_scaling = rotation.scaling;
  }

  void check_architecture() {
    const JsonNode* classes = config_.find("architectures");
    if (!classes) return;
    if (classes->kind == JsonNode::Kind::list && classes->children.size() == 1 && classes->children[0].is(family_.architecture)) return;
    std::vector<std::string_view> supported;
    for (const Family& known : families()) supported.push_back(known.architecture);
    const std::string given = classes->children.empty() ? classes->literal.str() : classes->children[0].literal.str();
    config_.fault("architectures", fmt::format("{} is not supported for model_type \"{}\"; supported: {}", shortened(given), family_.type,
                                               fmt::join(supported, ", ")));
  }

  void refuse_unknown() {
    for (const JsonNode& node : config_.members()) {
      if (node.kind == JsonNode::Kind::null || config_.knows(node.name)) continue;
      if (node.name == "output_router_logits" && node.written == "true") {
        config_.unused(
            "output_router_logits (with it transformers trains with router_aux_loss_coef over the tokens of all layers at once; "
            "model.router_aux_loss is for each layer, and the deck sets it)");
        continue;
      }
      if (holds(harmless, node.name)) continue;
      if (holds(unused, node.name)) {
        config_.unused(node.name == "router_aux_loss_coef" ? node.name + " (model.router_aux_loss is for each layer)" : node.name);
        continue;
      }
      config_.fault_at_name(node, fmt::format("is not a known key of model_type \"{}\", so a deck may not describe the model fully; if no "
                                              "number depends on it, remove it from the file",
                                              family_.type));
    }
  }

  ConfigReader& config_;
  const Family& family_;
};

void refuse_type(ConfigReader& config, const std::string& type) {
  std::vector<std::string_view> types, missing;
  for (const Family& known : families()) types.push_back(known.type);
  if (const RefusedFamily* refused = refused_family(type)) missing = refused->missing;
  if (config.find("text_config")) missing.push_back("models of more than text (text_config)");
  const std::string what = missing.empty() ? "is not a model that a deck can describe; "
                                           : fmt::format("is not in this version, which lacks {}. In it ", fmt::join(missing, "; "));
  config.fault("model_type", fmt::format("{} {}{} are", toml_string(shortened(type)), what, fmt::join(types, ", ")));
}

/// The text model in a model of more than text.
ModelSource read_text_part(ConfigReader& whole, const WholeModel& model, const std::string& file, std::vector<Fault>& faults) {
  const JsonNode* text = whole.find("text_config");
  if (!text) return whole.fault("text_config", fmt::format("is missing; a {} has its text model there", model.type)), ModelSource{};
  if (text->kind != JsonNode::Kind::object) return whole.wrong(*text, "an object { ... }"), ModelSource{};
  ConfigReader config(*text, file, faults);
  if (const std::string type = config.text("model_type", std::string(model.text_type)); type != model.text_type)
    return config.fault("model_type", fmt::format("{} is not a supported text model of a {}; {} is", toml_string(shortened(type)),
                                                  model.type, model.text_type)),
           ModelSource{};
  ModelSource source = FamilyReader(config, *family_named(model.text_type)).read(file);
  // The whole model's word on the head counts.
  source.model.tied = whole.truth("tie_word_embeddings", true);
  source.text_part = true;
  if (const JsonNode* classes = whole.find("architectures");
      classes && !(classes->kind == JsonNode::Kind::list && classes->children.size() == 1 && classes->children[0].is(model.architecture)))
    whole.fault(*classes, fmt::format("is not {}, the only supported value for model_type \"{}\"", model.architecture, model.type));
  for (const Refused& row : refused_keys)
    if (row.key != "text_config" && whole.find(row.key)) whole.fault(row.key, std::string(row.why));
  for (const JsonNode& node : whole.members())
    if (node.kind != JsonNode::Kind::null && !whole.knows(node.name) && !holds(harmless, node.name) && node.name != "initializer_range" &&
        !node.name.ends_with("_token_id") && std::ranges::find(model.beside, node.name) == model.beside.end())
      whole.fault_at_name(
          node,
          fmt::format("is not a known key of model_type \"{}\"; if no number of its text model depends on it, remove it from the file",
                      model.type));
  source.notes.push_back(
      fmt::format("{}: a {}; only its text model ({}) is read. The image part is left out, and an export is the text model alone", file,
                  model.architecture, source.architecture));
  return source;
}

}  // namespace

ModelSource read_huggingface_config(const std::string& text, const std::string& file, std::vector<Fault>& faults) {
  JsonNode root;
  if (!read_json(text, file, root, faults)) return {};
  ConfigReader config(root, file, faults);
  const std::string type = config.text("model_type", "");
  if (const Family* family = family_named(type)) return FamilyReader(config, *family).read(file);
  if (const WholeModel* whole = whole_model(type)) return read_text_part(config, *whole, file, faults);
  refuse_type(config, type);
  return {};
}

}  // namespace tessera
