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
  const auto bytes = static_cast<std::int64_t>(s.pack_weights ? kernels::gemm_packed_bytes(product, s.backend) : 0);
  if (bytes == 0) return {};
  for (std::size_t id = 0; id < segment_.values.size(); ++id) {
    const ValueInfo& v = segment_.values[id];
    const bool same = v.kind == ValueKind::packed_weight && v.name == tensor && v.product.b_transposed == product.b_transposed;
    if (same) return {static_cast<int>(id)};
  }
  return add({.kind = ValueKind::packed_weight, .name = tensor, .bytes = bytes, .product = product});
}

}  // namespace tessera
