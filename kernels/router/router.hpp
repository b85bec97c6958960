// The router of a layer with experts (Shazeer et al., arXiv:1701.06538): which experts take a token, and what their outputs count for.
// Beside it two losses: one that balances the experts (Switch Transformer, arXiv:2101.03961) and one that keeps logits small (ST-MoE,
// arXiv:2202.08906). All of it in fp32. Or, in place of the first, a bias of each expert that its load moves (Wang et al.,
// arXiv:2408.15664).
#pragma once
#include "kernels/context.hpp"
#include "kernels/fixed/fixed_sum.hpp"
#include "kernels/update/scalars.hpp"

namespace tessera::kernels {

/// Of M tokens each goes to the k of E experts whose logits are largest: of equal ones to the lower. Their probabilities, of a softmax over
/// all E, are their weights; `normalized`: divided by their sum. `scale` multiplies them. `shared`: one more expert takes every token,
/// whose logit stands after the others' and whose weight is the logit's sigmoid. `sigmoid`: sigmoids of logits stand for probabilities, and
/// are what experts are chosen by (DeepSeek-V3, arXiv:2412.19437). Experts lie in equal `groups`; a token's are those of the `top_groups`
/// whose two best are largest together.
struct RouterShape {
  std::int64_t M = 0, E = 0, k = 0;
  bool shared = false, normalized = true, sigmoid = false;
  float scale = 1;
  std::int64_t groups = 1, top_groups = 1;  ///< several with `sigmoid` alone: most_groups at most, of two experts or more
  std::int64_t parts = 1;  ///< of a micro-batch, with as many tokens each: the others lie elsewhere, and choices of all of them are counted
  TESSERA_BOTH std::int64_t columns() const { return E + (shared ? 1 : 0); }  ///< logits of a token
  TESSERA_BOTH std::int64_t slots() const { return k + (shared ? 1 : 0); }    ///< weights of a token
};

/// Of experts: each has a bit.
inline constexpr std::int64_t most_groups = 64;

/// With `bias` the k experts are those whose probability plus bias is largest. What they count for knows no bias.
/// A token of padding goes to no expert: its choices are E, which none has, and its weights 0.
struct RouterForward {
  std::int32_t* experts = nullptr;        ///< (M,k), the best first. Of logits that are NaN any experts, and weights that are NaN.
  float* weights = nullptr;               ///< (M,slots)
  const float* logits = nullptr;          ///< (M,columns)
  const float* bias = nullptr;            ///< (E), or null
  const std::int32_t* padding = nullptr;  ///< (M): 1 where a token is padding; or null
  RouterShape shape;
};
TESSERA_OP(router_forward, (const Context& context, const RouterForward& arguments), (context, arguments))

/// The losses of a token, whose means over tokens are the layer's: E sum_e f_e p_e, where f_e is the share of all choices that fell on
/// expert e, 1 where all have the same, and p_e its probability, or its sigmoid over the sum of all; and the square of log sum exp of the
/// logits. Padding has none: 0, and it counts in no mean.
struct RouterLosses {
  float* balance = nullptr;               ///< (M)
  float* z = nullptr;                     ///< (M)
  const float* logits = nullptr;          ///< (M,columns)
  const std::int32_t* experts = nullptr;  ///< (M,k)
  const std::int32_t* counts = nullptr;   ///< (parts,E) choices of each expert
  RouterShape shape;
};
TESSERA_OP(router_losses, (const Context& context, const RouterLosses& arguments), (context, arguments))

struct RouterBackward {
  void* d_logits = nullptr;               ///< (M,columns) of dtype; zeros of padding
  const float* d_weights = nullptr;       ///< (M,slots)
  const float* weights = nullptr;         ///< (M,slots)
  const std::int32_t* experts = nullptr;  ///< (M,k)
  const float* logits = nullptr;          ///< (M,columns)
  const std::int32_t* counts = nullptr;   ///< (parts,E)
  const double* weight = nullptr;         ///< 1 value: of this micro-batch in the two losses
  const float* grad_scale = nullptr;      ///< 1 value: of sums over tokens
  float balance = 0, z = 0;               ///< coefficients of the two losses
  RouterShape shape;
  DType dtype = DType::f32;
};
TESSERA_OP(router_backward, (const Context& context, const RouterBackward& arguments), (context, arguments))

/// A step's totals over micro-batches and layers, and after them (layers,E) int64 choices of each expert. All of it travels in one
/// all-reduce of int64.
struct RouterTotals {
  FixedSum balance, z;       ///< sums over tokens and layers
  std::int64_t dropped = 0;  ///< choices that found no room
};
inline constexpr std::int64_t router_sums = 9;

/// A layer's micro-batch joins the totals. A weight of 0 is a micro-batch that only keeps ranks in step: nothing of it is read. Sets
/// *not_finite where a sum is no number.
struct AddRouterTotals {
  RouterTotals* totals = nullptr;
  std::int64_t* loads = nullptr;  ///< (E) of this layer
  const double *balance = nullptr, *z = nullptr, *weight = nullptr;
  const std::int32_t* counts = nullptr;   ///< (E)
  const std::int32_t* offsets = nullptr;  ///< (E+1): the last says how many found room
  std::int32_t* not_finite = nullptr;
  std::int64_t E = 0;
};
TESSERA_OP(add_router_totals, (const Context& context, const AddRouterTotals& arguments), (context, arguments))

/// Of each layer the biases of experts that had less than the mean of a step's choices grow by `rate`, of those that had more they shrink,
/// and the others stay. Loads are compared as integers: all ranks get the same bits. With `skip` nothing changes.
struct BalanceRouters {
  float* biases = nullptr;              ///< (layers,stride), of which E of a row are biases
  const std::int64_t* loads = nullptr;  ///< (layers,E) choices
  const UpdateScalars* scalars = nullptr;
  float rate = 0;
  std::int64_t layers = 0, E = 0, stride = 0;
};
TESSERA_OP(balance_routers, (const Context& context, const BalanceRouters& arguments), (context, arguments))

}  // namespace tessera::kernels
