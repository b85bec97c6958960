#include "exchange/own_head.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "exchange/text_part_files.hpp"

namespace tessera {
namespace {

constexpr std::int64_t piece = 1 << 20;  // elements

/// Of one shape.
bool same_values(const io::SafetensorsModel& model, const io::SafetensorsModel::Tensor& a, const io::SafetensorsModel::Tensor& b) {
  const std::int64_t elements = a.shape.elements();
  std::vector<float> left(static_cast<std::size_t>(std::min(piece, elements))), right(left.size());
  for (std::int64_t at = 0; at < elements; at += piece) {
    const auto n = static_cast<std::size_t>(std::min(piece, elements - at));
    model.read_box(a, whole_box(a.shape), std::span(left).first(n), at);
    model.read_box(b, whole_box(b.shape), std::span(right).first(n), at);
    if (std::memcmp(left.data(), right.data(), n * sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace

bool has_own_head(const std::string& folder) {
  if (!io::has_model(folder)) return false;
  const io::SafetensorsModel model = open_text_model(folder);
  const io::SafetensorsModel::Tensor *head = model.find("lm_head.weight"), *embedding = nullptr;
  for (const char* name : {"model.embed_tokens.weight", "transformer.wte.weight", "wte.weight"})
    if (!embedding) embedding = model.find(name);
  return head && embedding && (!(head->shape == embedding->shape) || !same_values(model, *head, *embedding));
}

}  // namespace tessera
