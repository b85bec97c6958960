#include "kernels/muon/muon.hpp"

#include "optimizer/texts/update_text.hpp"

namespace tessera {
namespace {

void muon_text(UpdateText& t) {
  const UpdateOperand m = t.state("muon_m");
  t.run("muon_momentum", {read(t.master()), add(m), read(t.gradient()), read(t.values()), write(t.matrices())},
        t.shape.nesterov ? kernels::muon_nesterov : kernels::muon_momentum);
  t.orthogonalize();
  t.run("muon", {add(t.master()), read(t.matrices()), read(t.values()), write(t.copy())}, kernels::muon);
}

}  // namespace

// Embedding, head and vectors are AdamW's.
Optimizer muon() {
  return {.name = "muon",
          .deepspeed = {"muon"},
          .trainer = {},
          .keys = {"beta1", "beta2", "eps", "bias_correction", "momentum", "nesterov", "newton_schulz", "muon_scale", "moments",
                   "moments_rounding"},
          .defaults = {{"momentum", 0.95}, {"nesterov", 1}},
          .text = muon_text,
          .takes = [](const UpdatedTensor& tensor) { return tensor.hidden_matrix; },
          .rest = "adamw"};
}

}  // namespace tessera
