#include "model/calls/products.hpp"

#include "model/calls/adapters.hpp"
#include "model/calls/fp8.hpp"
#include "model/calls/parts.hpp"
#include "model/record/products.hpp"

namespace tessera {
namespace {

using enum Access;

ProductWork work_of(products::Product product, const products::Dims& d, double quantised_bytes) {
  return {.product = product, .tokens = d.M, .outputs = d.N, .inputs = d.K, .quantised_bytes = quantised_bytes};
}

/// Workspace for each number of rows that a product may take: fewer rows may need more of it. product(rows): the product of so many.
template <class F>
std::size_t most_workspace(const CountedRows& counted, const Rows& rows, const Multiply& multiply, F product) {
  std::size_t bytes = 0;
  counted.for_each_number(rows.count, [&](std::int64_t count) { bytes = std::max(bytes, multiply.workspace_bytes(product(count))); });
  return bytes;
}

}  // namespace

void linear(Recorder& r, Value y, Value x, const std::string& w, std::int64_t N, std::int64_t K, const LinearExtra& extra) {
  const ModelShape& s = r.s;
  const Rows rows = extra.rows.value_or(r.all_rows());
  const products::Dims dims{rows.count, N, K, s.dtype};
  const DType out = extra.fp32 ? DType::f32 : s.dtype;
  const auto product = [dims, out, adds = extra.adds](void* y, const void* x, const products::Weight& w, const void* bias) {
    kernels::Gemm g = products::forward(dims, y, x, w, bias);
    g.out = out, g.accumulate = adds;
    return g;
  };
  const Multiply multiply(r, w, products::Product::forward);
  const Value weight = r.weight(w), copy = r.packed(w, multiply.stored(product(nullptr, nullptr, {}, nullptr)));
  const Value bias = extra.bias.empty() ? Value{} : r.weight(extra.bias), addend = extra.add;
  const char present = 0;
  const kernels::Gemm planned = product(nullptr, nullptr, {}, bias ? &present : nullptr);
  r.call({.name = "linear " + w,
          .touches = multiply.with_scales(
              with_reads({{y, extra.adds ? Access::add : write}, {x, read}, {weight, read}}, {copy, bias, addend, extra.counted.count})),
          .flops = products::flops(dims),
          .work = work_of(products::Product::forward, dims, multiply.quantised_bytes(planned)),
          .workspace = most_workspace(extra.counted, rows, multiply,
                                      [&](std::int64_t count) {
                                        kernels::Gemm g = planned;
                                        g.M = count;
                                        return g;
                                      }),
          .run = [=, counted = extra.counted, first = s.bytes_of(rows.first * K),
                  y_first = extra.y_first * N * static_cast<std::int64_t>(size_of(out))](const At& at) {
            auto g = product(at.get<std::byte>(y) + y_first, at.get<std::byte>(x) + first, {at.get(weight), at.get(copy)}, at.get(bias));
            g.addend = at.get(addend);
            g.M = counted.of(at, rows);
            if (g.M > 0) multiply(at, g);
          }});
  if (!extra.rows) add_adapters(r, y, x, w, N, K);
}

void weight_gradient(Recorder& r, Value d_y, Value x, const std::string& w, std::int64_t N, std::int64_t K, const std::optional<Rows>& only,
                     const CountedRows& counted) {
  const ModelShape& s = r.s;
  const Rows rows = only.value_or(r.all_rows());
  const products::Dims dims{rows.count, N, K, s.dtype};
  const Value d_weight = r.gradient(w);
  const Multiply multiply(r, w, products::Product::weight_gradient);
  const auto planned = [&](bool adds, std::int64_t tokens) {
    return products::weight_gradient({tokens, N, K, s.dtype}, nullptr, nullptr, nullptr, adds);
  };
  r.call({.name = "weight_gradient " + w,
          .touches = multiply.with_scales(with_reads({{d_weight, Access::add}, {d_y, read}, {x, read}}, {counted.count})),
          .flops = products::flops(dims),
          .work = work_of(products::Product::weight_gradient, dims, multiply.quantised_bytes(planned(true, rows.count))),
          .workspace = std::max(most_workspace(counted, rows, multiply, [&](std::int64_t count) { return planned(true, count); }),
                                most_workspace(counted, rows, multiply, [&](std::int64_t count) { return planned(false, count); })),
          .run = [=, first = s.bytes_of(rows.first * K)](const At& at) {
            auto g = products::weight_gradient(dims, at.get<float>(d_weight), at.get(d_y), at.get<std::byte>(x) + first, at.adds(d_weight));
            g.K = counted.of(at, rows);
            g.K > 0 ? multiply(at, g) : static_cast<void>(started(at, d_weight, N * K));
          }});
  if (!only) adapter_weight_gradients(r, d_y, x, w, N, K);
}

void input_gradient(Recorder& r, Value d_x, Value d_y, const std::string& w, std::int64_t N, std::int64_t K,
                    const std::optional<Rows>& only, bool adds, const CountedRows& counted) {
  const ModelShape& s = r.s;
  const Rows rows = only.value_or(r.all_rows());
  const products::Dims dims{rows.count, N, K, s.dtype};
  const Multiply multiply(r, w, products::Product::input_gradient);
  kernels::Gemm planned = products::input_gradient(dims, nullptr, nullptr, {});
  planned.accumulate = adds;
  const Value weight = r.weight(w), copy = r.packed(w, multiply.stored(planned));
  r.call(
      {.name = "input_gradient " + w,
       .touches = multiply.with_scales(with_reads({{d_x, adds ? Access::add : write}, {d_y, read}, {weight, read}}, {copy, counted.count})),
       .flops = products::flops(dims),
       .work = work_of(products::Product::input_gradient, dims, multiply.quantised_bytes(planned)),
       .workspace = most_workspace(counted, rows, multiply,
                                   [&](std::int64_t count) {
                                     kernels::Gemm g = planned;
                                     g.M = count;
                                     return g;
                                   }),
       .run = [=, first = s.bytes_of(rows.first * K)](const At& at) {
         auto g = products::input_gradient(dims, at.get<std::byte>(d_x) + first, at.get(d_y), {at.get(weight), at.get(copy)});
         g.accumulate = adds;
         g.M = counted.of(at, rows);
         if (g.M > 0) multiply(at, g);
       }});
  if (!only) add_adapter_input_gradients(r, d_x, d_y, w, N, K);
}

void linear_backward(Recorder& r, Value d_x, Value d_y, Value x, const std::string& w, std::int64_t N, std::int64_t K,
                     const std::optional<Rows>& only, const CountedRows& counted) {
  weight_gradient(r, d_y, x, w, N, K, only, counted);
  input_gradient(r, d_x, d_y, w, N, K, only, false, counted);
}

void bias_backward(Recorder& r, Value d_y, const std::string& bias, std::int64_t N, const std::optional<Rows>& only,
                   const CountedRows& counted) {
  const ModelShape& s = r.s;
  const Rows rows = only.value_or(r.all_rows());
  const Value d_bias = r.gradient(bias);
  std::size_t workspace = 0;
  counted.for_each_number(rows.count, [&](std::int64_t count) {
    workspace = std::max(workspace, kernels::column_sums_workspace_bytes({.M = count, .N = N}, s.backend));
  });
  r.call({.name = "column_sums " + bias,
          .touches = with_reads({{d_bias, Access::add}, {d_y, read}}, {counted.count}),
          .workspace = workspace,
          .run = [=, s = s](const At& at) {
            float* sum = started(at, d_bias, N);
            const std::int64_t M = counted.of(at, rows);
            if (M > 0) column_sums(at.context, {.sum = sum, .x = at.get(d_y), .M = M, .N = N, .dtype = s.dtype});
          }});
}

}  // namespace tessera
