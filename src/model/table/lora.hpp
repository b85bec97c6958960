// Low-rank adapters (LoRA; Hu et al., arXiv:2106.09685). Beside a frozen matrix W (N,K) of a layer stand two small ones that are trained,
// A (r,K) and B (N,r), and the layer's product is y = x W^T + s (x A^T) B^T. B begins as zeros, so that a run begins at the model it
// adapts.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/table/parameters.hpp"
#include "model/table/shape.hpp"

namespace tessera {

/// Names of the two matrices beside one: "layers.3.attention.wq.lora_a".
std::string lora_a(std::string_view tensor);
std::string lora_b(std::string_view tensor);

/// s: alpha / r, or with scaling "rslora" alpha / sqrt(r) (Kalajdzievski, arXiv:2312.03732).
double lora_scale(const LoraKeys& lora);

/// Marks all tensors frozen, and puts adapters' matrices after those of their layer: of experts all matrices A of one name, then all B.
/// Throws Error(usage) for a target that is no matrix of an attention, MLP or expert, or that leaves out some experts of a layer.
void add_adapters(std::vector<Parameter>& table, const LoraKeys& lora);

/// Has the tensors of lora.modules_to_save trained. Throws Error(usage) for a name of none, or of one that has an adapter.
void train_whole(std::vector<Parameter>& table, const LoraKeys& lora);

/// Whether PEFT's files of an adapter have the tensor, and its name there.
bool is_saved_with_adapter(const Parameter& p);
std::string peft_name(const Parameter& p);

/// Of a product's result (M, N) the columns [first, first + count) that a tensor with an adapter makes.
struct AdaptedColumns {
  std::string tensor;
  std::int64_t first = 0, count = 0;
  std::uint32_t target = 0;  ///< which of a layer's matrices it is
};
/// Of the product of `w` and the tensors joined to it, which makes N columns on this rank.
std::vector<AdaptedColumns> adapted_columns(const ModelShape& shape, const std::string& w, std::int64_t N);

/// "rank 16, alpha 32 (scale 2), beside 14 matrices, 1.2 M parameters"; empty without adapters.
std::string describe_lora(const ModelKeys& model, const std::vector<Parameter>& table);

/// The names by which PEFT knows the modules that have adapters: "q_proj" where every layer's has one, else
/// "model.layers.3.self_attn.q_proj".
std::vector<std::string> peft_target_modules(const std::vector<Parameter>& table);

/// Whether the embedding of a model that has it as its head is trained whole.
bool is_tied_whole(const ModelKeys& model, const std::vector<Parameter>& table);
/// The names of the modules that are trained whole, in full.
std::vector<std::string> peft_modules_to_save(const std::vector<Parameter>& table);

}  // namespace tessera
