#include "kernels/onebit/onebit.hpp"

#include "optimizer/texts/update_text.hpp"

namespace tessera {
namespace {

void onebit_adam_text(UpdateText& t) {
  const UpdateOperand m = t.state("adam_m"), v = t.state("adam_v");
  if (t.shape.warms_up) {
    t.run("onebit_warmup", {add(t.master()), add(m), add(v), read(t.gradient()), read(t.values()), write(t.copy())},
          kernels::onebit_warmup);
    return;
  }
  t.run("onebit_momentum", {read(t.master()), add(m), read(t.gradient()), read(t.values())}, kernels::onebit_momentum);
  t.take_mean_by_signs(m);
  t.run("onebit_frozen", {add(t.master()), read(m), read(v), read(t.values()), write(t.copy())}, kernels::onebit_frozen);
}

}  // namespace

Optimizer onebit_adam() {
  return {.name = "onebit_adam",
          .deepspeed = {"onebitadam"},
          .trainer = {},
          .keys = {"beta1", "beta2", "eps", "freeze_step"},
          .defaults = {{"beta2", 0.999}},
          .text = onebit_adam_text,
          .sends_signs = true};
}

}  // namespace tessera
