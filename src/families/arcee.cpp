// Arcee's AFM: a Llama whose feed-forward blocks have no gate.
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

constexpr auto arcee_keys = std::to_array<FamilyKey>({{.name = "mlp_bias", .field = &ModelKeys::mlp_bias}});

/// Its class refuses others.
bool has_heads_of_arcee(const ModelKeys& m) { return m.heads == 0 || m.width % m.heads == 0; }

}  // namespace

Family arcee_family() {
  return {.type = "arcee",
          .architecture = "ArceeForCausalLM",
          .standard = {.norm_eps = 1e-5, .activation = Activation::relu_squared, .gated = false, .max_context = 4096},
          .takes = has_heads_of_arcee,
          .output_bias = true,
          .keys = arcee_keys};
}

}  // namespace tessera
