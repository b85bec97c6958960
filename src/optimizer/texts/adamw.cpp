#include "kernels/adamw/adamw.hpp"
#include "optimizer/texts/update_text.hpp"

namespace tessera {
namespace {

void adamw_text(UpdateText& t) {
  const UpdateOperand m = t.state("adam_m"), v = t.state("adam_v");
  t.run("adamw", {add(t.master()), add(m), add(v), read(t.gradient()), read(t.values()), write(t.copy())}, kernels::adamw);
}

}  // namespace

// DeepSpeed's Adam decouples weight decay too, where adam_w_mode does not say otherwise.
Optimizer adamw() {
  return {.name = "adamw",
          .deepspeed = {"adamw", "adam", "deepspeedcpuadam"},
          .trainer = {"adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused", "adamw_apex_fused", "adamw_hf",
                      "paged_adamw_32bit", "paged_adamw"},
          .keys = {"beta1", "beta2", "eps", "bias_correction", "moments", "moments_rounding"},
          .defaults = {},
          .text = adamw_text};
}

}  // namespace tessera
