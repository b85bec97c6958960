// How blocks of a layer meet the residual stream, and what attention computes beside its products: keys of [model] that need each other.
#include <fmt/format.h>

#include "deck/rules/draft.hpp"

namespace tessera {

void check_blocks(Draft& draft) {
  const Deck& d = draft.deck;
  if (draft.good({"model.qk_norm", "model.wide_qk_norm"}) && d.model.wide_qk_norm && !d.model.qk_norm)
    draft.idle("model.wide_qk_norm", "model.qk_norm", "has no effect without model.qk_norm = true; set that or leave this key out");
  if (draft.good({"model.gate_limit", "model.activation"}) && d.model.activation != Activation::clamped_silu &&
      draft.differs("model.gate_limit"))
    draft.idle("model.gate_limit", "model.activation",
               "has no effect without model.activation = \"clamped_silu\"; set that or leave this key out");
  if (draft.good({"model.gated", "model.activation", "model.experts"})) {
    const Activation activation = d.model.activation;
    if (!d.model.gated && d.model.experts > 0)
      draft.fault({"model.gated", "model.experts"},
                  "model.gated = false applies only to feed-forward blocks that take every token, and this model has experts; set "
                  "model.gated = true or model.experts = 0");
    else if (!d.model.gated && (activation == Activation::silu || activation == Activation::clamped_silu))
      draft.fault({"model.gated", "model.activation"},
                  fmt::format("model.activation = \"{}\" needs a gate, and model.gated is false; set it to \"gelu\", \"gelu_tanh\", "
                              "\"relu_squared\" or \"xielu\", or set model.gated = true",
                              word_of(activation)));
    else if (d.model.gated && (activation == Activation::relu_squared || activation == Activation::xielu))
      draft.fault({"model.activation", "model.gated"},
                  fmt::format("model.activation = \"{}\" works only without a gate; set model.gated = false or another activation",
                              word_of(activation)));
  }
  if (draft.good({"model.mlp_bias", "model.experts"}) && d.model.mlp_bias && d.model.experts > 0)
    draft.fault({"model.mlp_bias", "model.experts"},
                "model.mlp_bias applies only to feed-forward blocks that take every token, and this model has experts; set "
                "model.expert_bias for experts, or model.mlp_bias = false");
  if (draft.good({"model.expert_bias", "model.experts", "model.shared_ff_width"}) && d.model.expert_bias && d.model.experts > 0 &&
      d.model.shared_ff_width > 0)
    draft.fault(
        {"model.expert_bias", "model.shared_ff_width"},
        "biases of experts do not work with a shared expert in this version; set model.expert_bias = false or model.shared_ff_width = 0");
  if (draft.good({"model.residual_scale", "model.norm_placement"}) && d.model.residual_scale != 1 &&
      (d.model.norm_placement == NormPlacement::post || d.model.norm_placement == NormPlacement::both))
    draft.fault({"model.residual_scale", "model.norm_placement"},
                "model.residual_scale does not work with a norm of the block's output in this version; set model.norm_placement = \"pre\" "
                "or model.residual_scale = 1.0");
  if (draft.good({"model.norm_placement", "model.experts"}) && d.model.norm_placement == NormPlacement::parallel && d.model.experts > 0)
    draft.fault({"model.norm_placement", "model.experts"},
                "attention parallel to experts is not in this version; set model.norm_placement = \"pre\", or model.experts = 0");
  if (draft.good({"kernels.attention", "run.device", "model.attention_softcap"}) && d.model.attention_softcap > 0 &&
      d.kernels.attention == AttentionMode::cudnn && d.run.device != RunDevice::host)
    draft.fault({"kernels.attention", "model.attention_softcap"},
                "only our own attention computes soft caps, and kernels.attention is \"cudnn\"; set it to \"auto\" or \"native\"");
}

}  // namespace tessera
