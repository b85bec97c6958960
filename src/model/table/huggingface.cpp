#include "model/table/huggingface.hpp"

#include <fmt/format.h>

#include "base/check.hpp"
#include "families/names.hpp"

namespace tessera {

std::vector<ExportTensor> huggingface_tensors(const Deck& deck, const std::vector<Parameter>& table) {
  const Family& family = require_family(deck.model);
  const TensorNames names(deck.model);
  std::vector<ExportTensor> tensors;
  for (const Parameter& p : table) {
    if (p.adapter) continue;
    TESSERA_REQUIRE(!p.export_name.empty(), "no row of src/families names {}", p.name);
    tensors.push_back({p.export_name, p.shape, p.name});
    // One switch has the biases of all four projections: with ours on q, k and v comes one of the output, which adds nothing.
    if (family.output_bias && deck.model.qkv_bias && p.name.ends_with(".attention.wo"))
      tensors.push_back({names.of(fmt::format("layers.{}.attention.bo", p.layer)), {deck.model.width}, ""});
  }
  return tensors;
}

}  // namespace tessera
