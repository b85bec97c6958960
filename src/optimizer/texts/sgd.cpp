#include "kernels/sgd/sgd.hpp"

#include "optimizer/texts/update_text.hpp"

namespace tessera {
namespace {

void sgd_text(UpdateText& t) {
  if (!t.shape.momentum) return t.run("sgd", {add(t.master()), read(t.gradient()), read(t.values()), write(t.copy())}, kernels::sgd);
  const UpdateOperand m = t.state("sgd_m");
  t.run("sgd_momentum", {add(t.master()), add(m), read(t.gradient()), read(t.values()), write(t.copy())},
        t.shape.nesterov ? kernels::sgd_nesterov : kernels::sgd_momentum);
}

}  // namespace

Optimizer sgd() {
  return {.name = "sgd",
          .deepspeed = {"sgd"},
          .trainer = {"sgd"},
          .keys = {"momentum", "nesterov", "moments", "moments_rounding"},
          .defaults = {},
          .text = sgd_text};
}

}  // namespace tessera
