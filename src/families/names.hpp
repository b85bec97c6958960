// What transformers calls the tensors of a deck's model, and PEFT the modules that they belong to.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "families/family.hpp"

namespace tessera {

class TensorNames {
 public:
  struct Name {
    std::string theirs;
    Fused fused = Fused::no;
    bool turned = false, interleaved = false, fp32 = false;  ///< as in TensorName
    std::int64_t pairs_of = 0;                               ///< rows of a head of TensorName::pairs; 0: it has none
  };

  /// Of a family, or where it is null the names that most families have. `head_dim`: of a model whose files are read.
  explicit TensorNames(const Family* family, std::int64_t head_dim = 0) : family_(family), head_dim_(head_dim) {}
  /// Of the model's family.
  explicit TensorNames(const ModelKeys& model) : TensorNames(family_of(model)) {}
  /// "model.layers.3.self_attn.q_proj.weight" of "layers.3.attention.wq"; "" where no file of transformers has such a tensor.
  Name name(std::string_view ours) const;
  std::string of(std::string_view ours) const { return name(ours).theirs; }
  /// Constants that exports have behind it, with their names.
  std::vector<std::pair<std::string, double>> constants_after(std::string_view ours) const;
  /// What the constant of this name is; nullopt: it names none.
  std::optional<double> constant(std::string_view theirs) const;
  /// Begins names, which files may leave out.
  std::string_view prefix() const { return family_ ? family_->prefix : std::string_view{}; }
  /// Whether it is a tensor that files of the family may have and that says nothing of the model, by its name with the prefix.
  bool is_buffer(std::string_view theirs) const;
  /// Whether a model may have such a tensor, whatever files call it.
  bool has(std::string_view ours) const;

 private:
  const Family* family_;
  std::int64_t head_dim_ = 0;
};

/// The module that a tensor of ours is the weight or bias of, as most families call it, and then as others do:
/// "model.layers.3.mlp.gate_proj" and "transformer.h.3.mlp.w1" of "layers.3.mlp.w_gate".
std::vector<std::string> modules_of(std::string_view ours);

/// "model.layers.3.self_attn.q_proj" of the name of its weight, or of its bias.
std::string module_of(std::string_view theirs);

}  // namespace tessera
