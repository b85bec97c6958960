#include "kernels/adam8bit/adam8bit.hpp"

#include "optimizer/texts/update_text.hpp"

namespace tessera {
namespace {

void adam8bit_text(UpdateText& t) {
  using kernels::StateType;
  const UpdateOperand m = t.state("adam_m", StateType::signed_blocks), v = t.state("adam_v", StateType::unsigned_blocks);
  t.run("adam8bit", {add(t.master()), add(m), add(v), read(t.gradient()), read(t.values()), write(t.copy())}, kernels::adam8bit);
}

}  // namespace

// What the moments are in is all that differs, so a run may go from AdamW to this and back. Tensors of fewer elements than bitsandbytes
// puts into 8 bits, and those that begin inside a block, are AdamW's.
Optimizer adam8bit() {
  return {.name = "adam8bit",
          .deepspeed = {},
          .trainer = {"adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit"},
          .keys = {"beta1", "beta2", "eps", "bias_correction"},
          .defaults = {},
          .text = adam8bit_text,
          .takes = [](const UpdatedTensor& tensor) { return tensor.elements >= 4096 && tensor.begins_block; },
          .rest = "adamw"};
}

}  // namespace tessera
