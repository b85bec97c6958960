// How blocks of a layer meet the residual stream, and what attention computes beside its products: keys of [model] that need each other.
#include "deck/draft.hpp"

namespace tessera {

void check_blocks(Draft& draft) {
  const Deck& d = draft.deck;
  if (draft.good({"model.qk_norm", "model.wide_qk_norm"}) && d.model.wide_qk_norm && !d.model.qk_norm)
    draft.idle("model.wide_qk_norm", "model.qk_norm", "has no effect without model.qk_norm = true; set that or leave this key out");
  if (draft.good({"model.residual_scale", "model.norm_placement"}) && d.model.residual_scale != 1 &&
      d.model.norm_placement != NormPlacement::pre)
    draft.fault({"model.residual_scale", "model.norm_placement"},
                "model.residual_scale and a norm of what joins the stream are not together in this version; set model.norm_placement = "
                "\"pre\" or model.residual_scale = 1.0");
  if (draft.good({"kernels.attention", "run.device", "model.attention_softcap"}) && d.model.attention_softcap > 0 &&
      d.kernels.attention == AttentionMode::cudnn && d.run.device != RunDevice::host)
    draft.fault({"kernels.attention", "model.attention_softcap"},
                "soft caps are computed by our own attention, and kernels.attention = \"cudnn\" asks for another; set it to \"auto\" or "
                "\"native\"");
}

}  // namespace tessera
