#include "kernels/lamb/lamb.hpp"

#include "optimizer/texts/update_text.hpp"

namespace tessera {
namespace {

void lamb_text(UpdateText& t) {
  const UpdateOperand m = t.state("adam_m"), v = t.state("adam_v"), norms = t.sums(2);
  t.run("lamb_moments", {read(t.master()), add(m), add(v), read(t.gradient()), read(t.values()), add(norms)}, kernels::lamb_moments);
  t.reduce(norms);
  t.run("lamb", {add(t.master()), read(m), read(v), read(t.values()), read(norms), write(t.copy())}, kernels::lamb);
}

}  // namespace

Optimizer lamb() {
  return {.name = "lamb",
          .deepspeed = {"lamb"},
          .trainer = {},
          .keys = {"beta1", "beta2", "eps", "bias_correction", "min_trust_ratio", "max_trust_ratio"},
          .defaults = {{"beta2", 0.999}},
          .text = lamb_text};
}

}  // namespace tessera
