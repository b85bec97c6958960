#include "kernels/adam/adam.hpp"
#include "optimizer/texts/update_text.hpp"

namespace tessera {
namespace {

void adam_text(UpdateText& t) {
  const UpdateOperand m = t.state("adam_m"), v = t.state("adam_v");
  t.run("adam", {add(t.master()), add(m), add(v), read(t.gradient()), read(t.values()), write(t.copy())}, kernels::adam);
}

}  // namespace

// DeepSpeed's "Adam" is AdamW, but for adam_w_mode = false: the import knows.
Optimizer adam() {
  return {.name = "adam",
          .deepspeed = {},
          .trainer = {},
          .keys = {"beta1", "beta2", "eps", "bias_correction", "moments", "moments_rounding"},
          .defaults = {},
          .text = adam_text};
}

}  // namespace tessera
