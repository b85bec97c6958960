// What adapters add to the products of linear layers (lora.hpp). Texts know nothing of them: a product of matrices that have some is
// followed by theirs, in columns of the same result.
#include <fmt/format.h>

#include "model/lora.hpp"
#include "model/recorder.hpp"

namespace tessera {
namespace {

using enum Access;

/// A product by a matrix (N,K) of an adapter, whose operands may be columns of wider matrices.
linear::Dims dims_of(const ModelShape& s, std::int64_t N, std::int64_t K) { return {.M = s.tokens(), .N = N, .K = K, .dtype = s.dtype}; }

/// "wq" of "layers.3.attention.wq".
std::string leaf(const std::string& tensor) { return tensor.substr(tensor.rfind('.') + 1); }

}  // namespace

void Recorder::adapter_product(Touch y, Value x, Value with, linear::Product product, const linear::Dims& dims, const kernels::Gemm& shape,
                               std::int64_t y_first, std::int64_t x_first) {
  const bool gradient = product == linear::Product::weight_gradient;
  const auto bytes = [&](bool adds) {
    kernels::Gemm g = shape;
    g.accumulate = adds;
    return kernels::gemm_workspace_bytes(g, s.backend);
  };
  call({.name = fmt::format("{} {}",
                            gradient                              ? "weight_gradient"
                            : product == linear::Product::forward ? "linear"
                                                                  : "input_gradient",
                            name_of(gradient ? y.value : with)),
        .touches = {y, {x, read}, {with, read}},
        .flops = linear::flops(dims),
        .work = ProductWork{.product = product, .tokens = dims.M, .outputs = dims.N, .inputs = dims.K},
        .workspace = gradient ? std::max(bytes(true), bytes(false)) : bytes(shape.accumulate),
        .run = [=, y = y.value, to = s.bytes_of(y_first), from = s.bytes_of(x_first)](const At& at) {
          kernels::Gemm g = shape;
          g.c = at.get<std::byte>(y) + to, g.a = at.get<std::byte>(x) + from, g.b = at.get(with);
          if (gradient) g.accumulate = at.adds(y);
          gemm(at.context, g);
        }});
}

void Recorder::add_adapters(Value y, Value x, const std::string& w, std::int64_t N, std::int64_t K) {
  const std::int64_t r = s.lora.rank;
  for (const AdaptedColumns& columns : adapted_columns(s, w, N)) {
    const Value inner = value((leaf(columns.tensor) + "_lora").c_str(), {s.tokens(), r});
    adapter_inner_[columns.tensor] = inner;
    const linear::Dims narrow = dims_of(s, r, K), wide = dims_of(s, columns.count, r);
    kernels::Gemm down = linear::forward(narrow, nullptr, nullptr, {}), up = linear::forward(wide, nullptr, nullptr, {});
    down.scale = static_cast<float>(lora_scale(s.lora));
    up.accumulate = true, up.c_stride = N;
    adapter_product({inner, write}, x, weight(lora_a(columns.tensor)), linear::Product::forward, narrow, down, 0, 0);
    adapter_product({y, Access::add}, inner, weight(lora_b(columns.tensor)), linear::Product::forward, wide, up, columns.first, 0);
  }
}

Value Recorder::adapter_inner_gradient(const AdaptedColumns& columns, Value d_y, std::int64_t N) {
  Value& d_inner = d_adapter_inner_[columns.tensor];
  if (d_inner) return d_inner;
  d_inner = value(("d_" + leaf(columns.tensor) + "_lora").c_str(), {s.tokens(), s.lora.rank});
  const linear::Dims dims = dims_of(s, columns.count, s.lora.rank);
  kernels::Gemm g = linear::input_gradient(dims, nullptr, nullptr, {});
  g.scale = static_cast<float>(lora_scale(s.lora)), g.a_stride = N;
  adapter_product({d_inner, write}, d_y, weight(lora_b(columns.tensor)), linear::Product::input_gradient, dims, g, 0, columns.first);
  return d_inner;
}

void Recorder::adapter_weight_gradients(Value d_y, Value x, const std::string& w, std::int64_t N, std::int64_t K) {
  const std::int64_t r = s.lora.rank;
  for (const AdaptedColumns& columns : adapted_columns(s, w, N)) {
    const Value d_inner = adapter_inner_gradient(columns, d_y, N);
    const linear::Dims narrow = dims_of(s, r, K), wide = dims_of(s, columns.count, r);
    kernels::Gemm of_b = linear::weight_gradient(wide, nullptr, nullptr, nullptr, false);
    of_b.a_stride = N;
    adapter_product({gradient(lora_b(columns.tensor)), Access::add}, d_y, adapter_inner_.at(columns.tensor),
                    linear::Product::weight_gradient, wide, of_b, 0, columns.first);
    adapter_product({gradient(lora_a(columns.tensor)), Access::add}, d_inner, x, linear::Product::weight_gradient, narrow,
                    linear::weight_gradient(narrow, nullptr, nullptr, nullptr, false), 0, 0);
  }
}

void Recorder::add_adapter_input_gradients(Value d_x, Value d_y, const std::string& w, std::int64_t N, std::int64_t K) {
  for (const AdaptedColumns& columns : adapted_columns(s, w, N)) {
    const Value d_inner = adapter_inner_gradient(columns, d_y, N);
    const linear::Dims narrow = dims_of(s, s.lora.rank, K);
    kernels::Gemm g = linear::input_gradient(narrow, nullptr, nullptr, {});
    g.accumulate = true;
    adapter_product({d_x, Access::add}, d_inner, weight(lora_a(columns.tensor)), linear::Product::input_gradient, narrow, g, 0, 0);
  }
}

}  // namespace tessera
