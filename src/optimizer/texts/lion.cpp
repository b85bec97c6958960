#include "kernels/lion/lion.hpp"
#include "optimizer/texts/update_text.hpp"

namespace tessera {
namespace {

void lion_text(UpdateText& t) {
  const UpdateOperand m = t.state("lion_m");
  t.run("lion", {add(t.master()), add(m), read(t.gradient()), read(t.values()), write(t.copy())}, kernels::lion);
}

}  // namespace

Optimizer lion() {
  return {.name = "lion",
          .deepspeed = {"lion", "fusedlion", "deepspeedcpulion"},
          .trainer = {"lion_32bit", "paged_lion_32bit"},
          .keys = {"beta1", "beta2", "moments", "moments_rounding"},
          .defaults = {{"beta2", 0.99}},
          .text = lion_text};
}

}  // namespace tessera
