#include "families/names.hpp"

#include <algorithm>
#include <array>

namespace tessera {
namespace {

constexpr std::string_view of_weight = ".weight";

/// Of most families.
constexpr auto usual_names = std::to_array<TensorName>({{"embedding.weight", "model.embed_tokens.weight"},
                                                        {"embedding.positions", ""},  // of families that say it
                                                        {"layers.#.attention.norm", "model.layers.#.input_layernorm.weight"},
                                                        {"layers.#.attention.wq", "model.layers.#.self_attn.q_proj.weight"},
                                                        {"layers.#.attention.wk", "model.layers.#.self_attn.k_proj.weight"},
                                                        {"layers.#.attention.wv", "model.layers.#.self_attn.v_proj.weight"},
                                                        {"layers.#.attention.bq", "model.layers.#.self_attn.q_proj.bias"},
                                                        {"layers.#.attention.bk", "model.layers.#.self_attn.k_proj.bias"},
                                                        {"layers.#.attention.bv", "model.layers.#.self_attn.v_proj.bias"},
                                                        {"layers.#.attention.q_norm", "model.layers.#.self_attn.q_norm.weight"},
                                                        {"layers.#.attention.k_norm", "model.layers.#.self_attn.k_norm.weight"},
                                                        {"layers.#.attention.wo", "model.layers.#.self_attn.o_proj.weight"},
                                                        {"layers.#.attention.bo", "model.layers.#.self_attn.o_proj.bias"},
                                                        {"layers.#.attention.post_norm", ""},  // of families that say it
                                                        {"layers.#.mlp.post_norm", ""},
                                                        {"layers.#.moe.post_norm", ""},
                                                        {"layers.#.mlp.norm", "model.layers.#.post_attention_layernorm.weight"},
                                                        {"layers.#.mlp.w_gate", "model.layers.#.mlp.gate_proj.weight"},
                                                        {"layers.#.mlp.w_up", "model.layers.#.mlp.up_proj.weight"},
                                                        {"layers.#.mlp.w_down", "model.layers.#.mlp.down_proj.weight"},
                                                        {"layers.#.moe.norm", "model.layers.#.post_attention_layernorm.weight"},
                                                        {"layers.#.moe.router", "model.layers.#.mlp.gate.weight"},
                                                        {"layers.#.moe.shared_gate", "model.layers.#.mlp.shared_expert_gate.weight"},
                                                        {"layers.#.moe.shared.w_gate", "model.layers.#.mlp.shared_expert.gate_proj.weight"},
                                                        {"layers.#.moe.shared.w_up", "model.layers.#.mlp.shared_expert.up_proj.weight"},
                                                        {"layers.#.moe.shared.w_down", "model.layers.#.mlp.shared_expert.down_proj.weight"},
                                                        {"layers.#.moe.router_bias", ""},  // no class that is exported has it
                                                        {"layers.#.attention.norm_bias", "model.layers.#.input_layernorm.bias"},
                                                        {"layers.#.attention.post_norm_bias", ""},
                                                        {"layers.#.mlp.norm_bias", "model.layers.#.post_attention_layernorm.bias"},
                                                        {"layers.#.mlp.post_norm_bias", ""},
                                                        {"layers.#.moe.norm_bias", "model.layers.#.post_attention_layernorm.bias"},
                                                        {"layers.#.moe.post_norm_bias", ""},
                                                        {"layers.#.mlp.b_gate", "model.layers.#.mlp.gate_proj.bias"},
                                                        {"layers.#.mlp.b_up", "model.layers.#.mlp.up_proj.bias"},
                                                        {"layers.#.mlp.b_down", "model.layers.#.mlp.down_proj.bias"},
                                                        {"head.norm_bias", "model.norm.bias"},
                                                        {"layers.#.attention.sinks", ""},  // of families that say them
                                                        {"layers.#.mlp.alpha_p", ""},
                                                        {"layers.#.mlp.alpha_n", ""},
                                                        {"layers.#.moe.b_router", ""},
                                                        {"layers.#.moe.experts.#.b_gate", ""},
                                                        {"layers.#.moe.experts.#.b_up", ""},
                                                        {"layers.#.moe.experts.#.b_down", ""},
                                                        {"layers.#.moe.experts.#.w_gate", "model.layers.#.mlp.experts.#.gate_proj.weight"},
                                                        {"layers.#.moe.experts.#.w_up", "model.layers.#.mlp.experts.#.up_proj.weight"},
                                                        {"layers.#.moe.experts.#.w_down", "model.layers.#.mlp.experts.#.down_proj.weight"},
                                                        {"head.norm", "model.norm.weight"},
                                                        {"head.weight", "lm_head.weight"},
                                                        {"head.bias", "lm_head.bias"}});

const TensorName* find_name(std::span<const TensorName> names, std::string_view ours) {
  const auto found = std::ranges::find(names, ours, &TensorName::ours);
  return found == names.end() ? nullptr : &*found;
}

/// A name with # for its numbers.
struct NumberedName {
  std::string pattern;
  std::vector<std::string_view> numbers;
};

NumberedName numbered(std::string_view name) {
  NumberedName found;
  while (!name.empty()) {
    const std::string_view word = name.substr(0, name.find('.'));
    const bool number = !word.empty() && word.find_first_not_of("0123456789") == word.npos;
    if (number) found.numbers.push_back(word);
    found.pattern += number ? "#" : word;
    name.remove_prefix(word.size());
    if (!name.empty()) found.pattern += '.', name.remove_prefix(1);
  }
  return found;
}

std::string with_numbers(std::string_view pattern, const NumberedName& name) {
  std::string text;
  std::size_t next = 0;
  for (const char c : pattern) c == '#' ? text += name.numbers[next++] : text += c;
  return text;
}

}  // namespace

TensorNames::Name TensorNames::name(std::string_view ours) const {
  const NumberedName name = numbered(ours);
  const TensorName* row = family_ ? find_name(family_->names, name.pattern) : nullptr;
  if (!row) row = find_name(usual_names, name.pattern);
  if (!row) return {};
  return {.theirs = with_numbers(row->theirs, name),
          .fused = row->fused,
          .turned = row->turned,
          .interleaved = row->interleaved,
          .fp32 = row->fp32,
          .pairs_of = row->pairs ? head_dim_ : 0};
}

std::vector<std::pair<std::string, double>> TensorNames::constants_after(std::string_view ours) const {
  std::vector<std::pair<std::string, double>> found;
  const NumberedName name = numbered(ours);
  for (const ConstantTensor& row : family_ ? family_->constants : std::span<const ConstantTensor>())
    if (row.after == name.pattern) found.emplace_back(with_numbers(row.theirs, name), row.value);
  return found;
}

std::optional<double> TensorNames::constant(std::string_view theirs) const {
  const NumberedName name = numbered(theirs);
  for (const ConstantTensor& row : family_ ? family_->constants : std::span<const ConstantTensor>())
    if (row.theirs == name.pattern) return row.value;
  return std::nullopt;
}

bool TensorNames::is_buffer(std::string_view theirs) const {
  return family_ && std::ranges::any_of(family_->buffers, [&](std::string_view end) {
           const std::string pattern = numbered(theirs).pattern;
           return pattern.ends_with(end) && pattern.substr(0, pattern.size() - end.size()).ends_with("#");
         });
}

bool TensorNames::has(std::string_view ours) const { return find_name(usual_names, numbered(ours).pattern) != nullptr; }

std::vector<std::string> modules_of(std::string_view ours) {
  const NumberedName name = numbered(ours);
  std::vector<std::string> modules;
  const auto add = [&](std::span<const TensorName> names) {
    const TensorName* row = find_name(names, name.pattern);
    if (!row) return;
    std::string module = module_of(with_numbers(row->theirs, name));
    if (std::ranges::find(modules, module) == modules.end()) modules.push_back(std::move(module));
  };
  add(usual_names);
  for (const Family& family : families()) add(family.names);
  return modules;
}

std::string module_of(std::string_view theirs) {
  for (const std::string_view end : {of_weight, std::string_view(".bias")})
    if (theirs.ends_with(end)) theirs.remove_suffix(end.size());
  return std::string(theirs);
}

}  // namespace tessera
