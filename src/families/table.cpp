#include <algorithm>
#include <array>

#include "families/family.hpp"
#include "families/list.hpp"  // TESSERA_FAMILIES: each NAME_family() of this folder, as CMake finds them

namespace tessera {

#define TESSERA_DECLARE(name) Family name##_family();
TESSERA_FAMILIES(TESSERA_DECLARE)
#undef TESSERA_DECLARE

const std::vector<Family>& families() {
#define TESSERA_ROW(name) name##_family(),
  static const std::vector<Family> rows = {TESSERA_FAMILIES(TESSERA_ROW)};
#undef TESSERA_ROW
  return rows;
}

std::span<const FamilyKey> shared_keys() {
  static constexpr auto keys = std::to_array<FamilyKey>({{.name = "vocab_size", .field = &ModelKeys::vocab, .required = true},
                                                         {.name = "hidden_size", .field = &ModelKeys::width, .required = true},
                                                         {.name = "intermediate_size", .field = &ModelKeys::ff_width, .required = true},
                                                         {.name = "num_hidden_layers", .field = &ModelKeys::layers, .required = true},
                                                         {.name = "num_attention_heads", .field = &ModelKeys::heads, .required = true},
                                                         {.name = "num_key_value_heads", .field = &ModelKeys::kv_heads},
                                                         {.name = "head_dim", .field = &ModelKeys::head_dim},
                                                         {.name = "hidden_act", .field = &ModelKeys::activation},
                                                         {.name = "rms_norm_eps", .field = &ModelKeys::norm_eps},
                                                         {.name = "tie_word_embeddings", .field = &ModelKeys::tied}});
  return keys;
}

std::span<const FamilyKey> Family::first_keys() const { return own_keys.empty() ? shared_keys() : own_keys; }

const Family* family_named(std::string_view type) {
  const auto found = std::ranges::find(families(), type, &Family::type);
  return found == families().end() ? nullptr : &*found;
}

}  // namespace tessera
