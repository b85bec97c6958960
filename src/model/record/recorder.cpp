#include "model/record/recorder.hpp"

#include <algorithm>

namespace tessera {

Value Recorder::add(ValueInfo info) {
  segment_.values.push_back(std::move(info));
  return {static_cast<int>(segment_.values.size()) - 1};
}

Value Recorder::declare(const ValueInfo& info) {
  const auto known = std::ranges::find_if(segment_.values, [&](const ValueInfo& v) { return v.kind == info.kind && v.name == info.name; });
  return known == segment_.values.end() ? add(info) : Value{static_cast<int>(known - segment_.values.begin())};
}

Value Recorder::packed(const std::string& tensor, const kernels::Gemm& product) {
  const auto bytes = static_cast<std::int64_t>(s.pack_weights || product.fp8 ? kernels::gemm_packed_bytes(product, s.backend) : 0);
  if (bytes == 0) return {};
  for (std::size_t id = 0; id < segment_.values.size(); ++id) {
    const ValueInfo& v = segment_.values[id];
    const bool same = v.kind == ValueKind::packed_weight && v.name == tensor && v.product.b_transposed == product.b_transposed;
    if (same) return {static_cast<int>(id)};
  }
  return add({.kind = ValueKind::packed_weight, .name = tensor, .bytes = bytes, .product = product});
}

Value Recorder::tokens() {
  if (s.feed == Feed::samples) return declare({.kind = ValueKind::tokens, .name = "tokens"});
  return declare({.kind = ValueKind::text_tokens,
                  .name = s.feed == Feed::prompt ? "prompt" : "token",
                  .bytes = s.tokens() * static_cast<std::int64_t>(sizeof(std::int32_t))});
}

Value Recorder::document_starts() {
  if (!s.documents || s.feed != Feed::samples) return {};
  return declare({.kind = ValueKind::document_starts, .name = "document_starts"});
}

Value Recorder::padding() {
  if (!s.padding || s.feed != Feed::samples) return {};
  return declare({.kind = ValueKind::padding, .name = "padding"});
}

Value Recorder::rotations(int rotation) {
  if (s.feed != Feed::token) return rope_table(rotation);
  return declare({.kind = ValueKind::rotations,
                  .name = name_of_rotation("rotations", rotation),
                  .bytes = s.rotated_features() * static_cast<std::int64_t>(sizeof(float))});
}

void Recorder::call(Call call) {
  if (auto* memory = std::get_if<MemoryWork>(&call.work); memory && memory->bytes == 0)
    for (const Touch& touch : call.touches)
      memory->bytes += static_cast<double>(segment_.at(touch.value).bytes) * (touch.access == Access::add ? 2 : 1);
  call.turns = turns;
  (in_backward_ ? segment_.backward : segment_.forward).push_back(std::move(call));
}

void Recorder::exchange(const Exchange& exchange, const std::string& name, Value to, Value from) {
  for (const Value value : {to, from}) segment_.values[index(value)].exchanged = true;
  std::vector<Touch> touches = {{to, Access::write}, {from, Access::read}};
  if (to == from) touches = {{to, Access::add}};
  call({.name = name, .touches = std::move(touches), .run = {}, .exchange = exchange});
}

}  // namespace tessera
