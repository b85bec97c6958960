#include "model/table/huggingface.hpp"

#include <algorithm>
#include <map>

#include "base/check.hpp"

namespace tessera {
namespace {

/// Puts p behind the parts that the tensor has.
void append_part(ExportTensor& tensor, const Parameter& p, const TensorNames::Name& name) {
  const bool of_expert = name.fused == Fused::experts, turned = name.turned && p.shape.dims.size() == 2;
  TensorPart part{.ours = p.name,
                  .shape = p.shape,
                  .box = whole_box(p.shape),
                  .turned = turned,
                  .step = name.interleaved ? 2 : 1,
                  .pairs_of = name.pairs_of};
  Box& box = part.box;
  if (turned) std::swap(box.count[0], box.count[1]);
  if (of_expert) box.start.insert(box.start.begin(), p.expert), box.count.insert(box.count.begin(), 1);
  const std::size_t rows = (of_expert ? 1 : 0) + (turned ? 1 : 0);  // the dim of our rows
  box.count[rows] = (box.count[rows] - 1) * part.step + 1;
  if (!tensor.parts.empty()) {
    const Box& last = tensor.parts.back().box;
    if (!of_expert || last.start[0] == box.start[0]) box.start[rows] = last.start[rows] + (part.step == 1 ? last.count[rows] : 1);
  }
  tensor.shape.dims.resize(part.box.start.size());
  for (std::size_t d = 0; d < part.box.start.size(); ++d)
    tensor.shape.dims[d] = std::max(tensor.shape.dims[d], part.box.start[d] + part.box.count[d]);
  tensor.parts.push_back(std::move(part));
}

/// What follows one another in the table does so in the tensor, where parts do not lie in turns.
void require_whole(const ExportTensor& tensor) {
  std::int64_t elements = 0;
  for (const TensorPart& part : tensor.parts) {
    TESSERA_REQUIRE(!part.in_order() || element_around(part.box, 0, tensor.shape) == elements, "{} in {} is {}", part.ours, tensor.name,
                    part.box.str());
    elements += part.shape.elements();
  }
  TESSERA_REQUIRE(elements == tensor.shape.elements(), "{} is {} with parts of {} elements", tensor.name, tensor.shape.str(), elements);
}

}  // namespace

Box TensorPart::of_theirs(const Box& box_of_ours) const {
  Box theirs = box;
  const std::size_t dims = box_of_ours.start.size(), before = box.start.size() - dims;
  for (std::size_t d = 0; d < dims; ++d) {
    const std::size_t to = before + (turned ? dims - 1 - d : d);
    const std::int64_t by = d == 0 ? step : 1, count = box_of_ours.count[d];
    theirs.start[to] += by * box_of_ours.start[d], theirs.count[to] = count == 0 ? 0 : (count - 1) * by + 1;
  }
  return theirs;
}

std::pair<std::int64_t, TensorPart> TensorPart::deinterleaved(std::int64_t row, std::int64_t rows) const {
  const std::int64_t half = pairs_of / 2, head = row / pairs_of, second = row % pairs_of / half;
  TensorPart part = *this;
  part.pairs_of = 0, part.step = 2;
  // Row head * 2 half + second * half + i of ours is row head * 2 half + 2 i + second of theirs.
  part.box.start[box.start.size() - shape.dims.size()] += second * (1 - pairs_of) - head * pairs_of;
  return {std::min(rows, half - row % half), std::move(part)};
}

std::vector<ExportTensor> tensors_by(const TensorNames& names, const std::vector<Parameter>& table) {
  std::vector<ExportTensor> tensors;
  std::map<std::string, std::size_t, std::less<>> places;
  for (const Parameter& p : table) {
    if (p.adapter) continue;
    const TensorNames::Name name = names.name(p.name);
    if (!p.trained && name.theirs.empty()) continue;
    TESSERA_REQUIRE(!name.theirs.empty(), "no row of src/families names {}", p.name);
    const auto [place, is_new] = places.emplace(name.theirs, tensors.size());
    TESSERA_REQUIRE(is_new || name.fused != Fused::no, "{} has the name of another, {}", p.name, name.theirs);
    if (is_new) tensors.push_back({.name = name.theirs, .shape = {}, .parts = {}, .fp32 = name.fp32});
    append_part(tensors[place->second], p, name);
  }
  for (const ExportTensor& tensor : tensors) require_whole(tensor);
  return tensors;
}

std::vector<ExportTensor> huggingface_tensors(const Deck& deck, const std::vector<Parameter>& table) {
  const Family& family = require_family(deck.model);
  const TensorNames names(&family);
  std::vector<ExportTensor> tensors;
  for (ExportTensor& tensor : tensors_by(names, table)) {
    const std::string ours = tensor.parts.front().ours;
    tensors.push_back(std::move(tensor));
    for (auto& [name, value] : names.constants_after(ours))
      tensors.push_back({.name = std::move(name), .shape = {}, .parts = {}, .value = static_cast<float>(value)});
    // One switch has the biases of all four projections: with ours on q, k and v comes one of the output, which adds nothing.
    if (constexpr std::string_view wo = ".wo";
        family.output_bias && deck.model.qkv_bias && !deck.model.attention_out_bias && ours.ends_with(".attention.wo"))
      tensors.push_back({names.of(ours.substr(0, ours.size() - wo.size()) + ".bo"), {deck.model.width}, {}});
  }
  return tensors;
}

}  // namespace tessera
