#include "model/calls/adapters.hpp"

#include <fmt/format.h>

#include "kernels/dropout/dropout.hpp"
#include "kernels/grouped_gemm/grouped_gemm.hpp"
#include "model/record/products.hpp"
#include "model/table/lora.hpp"

namespace tessera {
namespace {

using enum Access;

using products::Product;

/// One of the three products by a matrix (N,K) of an adapter.
struct AdapterProduct {
  products::Product product = products::Product::forward;
  std::int64_t N = 0, K = 0;
  float scale = 1;
  bool accumulate = false;
  /// Where one operand, of a forward product the result, is columns of a wider matrix: its first one, and that matrix's width.
  std::int64_t first = 0, stride = 0;
};

/// "wq_lora" of "layers.3.attention.wq", "experts_w_up_lora" of "layers.3.moe.experts.0.w_up".
std::string inner_name(const std::string& tensor) {
  const std::string leaf = tensor.substr(tensor.rfind('.') + 1);
  for (const char* block : {"experts", "shared"})
    if (tensor.find(fmt::format(".moe.{}.", block)) != tensor.npos) return fmt::format("{}_{}_lora", block, leaf);
  return leaf + "_lora";
}

const char* text_of(Product product) {
  return product == Product::weight_gradient ? "weight_gradient" : product == Product::forward ? "linear" : "input_gradient";
}

kernels::Gemm gemm_of(const AdapterProduct& p, const ModelShape& s, bool adds) {
  const products::Dims dims{.M = s.tokens(), .N = p.N, .K = p.K, .dtype = s.dtype};
  kernels::Gemm g = p.product == Product::forward          ? products::forward(dims, nullptr, nullptr, {})
                    : p.product == Product::input_gradient ? products::input_gradient(dims, nullptr, nullptr, {})
                                                           : products::weight_gradient(dims, nullptr, nullptr, nullptr, adds);
  g.scale = p.scale, g.accumulate = adds;
  (p.product == Product::forward ? g.c_stride : g.a_stride) = p.stride;
  return g;
}

kernels::GroupedGemm grouped_of(const AdapterProduct& p, const ModelShape& s, bool adds) {
  const bool forward = p.product == Product::forward;
  return {.rows = s.arriving_rows(),
          .E = s.own_experts(),
          .N = forward ? p.N : p.K,
          .K = forward ? p.K : p.N,
          .a_stride = forward ? 0 : p.stride,
          .c_stride = forward ? p.stride : 0,
          .scale = p.scale,
          .b_transposed = forward,
          .accumulate = adds,
          .dtype = s.dtype};
}

kernels::GroupedWeightGradient grouped_gradient_of(const AdapterProduct& p, const ModelShape& s, bool adds) {
  return {
      .rows = s.arriving_rows(), .E = s.own_experts(), .N = p.N, .K = p.K, .d_y_stride = p.stride, .accumulate = adds, .dtype = s.dtype};
}

std::size_t workspace_of(const AdapterProduct& p, const ModelShape& s, bool of_experts, bool adds) {
  if (!of_experts) return kernels::gemm_workspace_bytes(gemm_of(p, s, adds), s.backend);
  if (p.product == Product::weight_gradient)
    return kernels::grouped_weight_gradient_workspace_bytes(grouped_gradient_of(p, s, adds), s.backend);
  return kernels::grouped_gemm_workspace_bytes(grouped_of(p, s, adds), s.backend);
}

/// What a product works on: `y` the result, `x` and `with` its operands, of which `with` is the adapter's matrix but in its gradient.
struct Operands {
  std::byte *y, *x;
  const void* with;
  const std::int32_t* offsets;
};

void run(const AdapterProduct& p, const ModelShape& s, const kernels::Context& context, const Operands& o, bool adds) {
  if (!o.offsets) {
    kernels::Gemm g = gemm_of(p, s, adds);
    g.c = o.y, g.a = o.x, g.b = o.with;
    return kernels::gemm(context, g);
  }
  if (p.product == Product::weight_gradient) {
    kernels::GroupedWeightGradient g = grouped_gradient_of(p, s, adds);
    g.d_w = reinterpret_cast<float*>(o.y), g.d_y = o.x, g.x = o.with, g.offsets = o.offsets;
    return kernels::grouped_weight_gradient(context, g);
  }
  kernels::GroupedGemm g = grouped_of(p, s, adds);
  g.c = o.y, g.a = o.x, g.b = o.with, g.offsets = o.offsets;
  kernels::grouped_gemm(context, g);
}

/// y is the result, x the operand that is no matrix of the adapter; `with` that matrix, or in its gradient what it multiplied.
void adapter_product(Recorder& r, const AdapterProduct& p, Value y, Value x, Value with, Value offsets) {
  const ModelShape& s = r.s;
  const bool gradient = p.product == Product::weight_gradient, forward = p.product == Product::forward, experts{offsets};
  const auto rows = static_cast<double>(experts ? s.expert_rows() : s.tokens());
  const std::size_t first = s.bytes_of(p.first);
  std::vector<Touch> touches = {{y, gradient || p.accumulate ? Access::add : write}, {x, read}, {with, read}};
  if (experts) touches.push_back({offsets, read});
  r.call({.name = fmt::format("{} {}", text_of(p.product), r.name_of(gradient ? y : with)),
          .touches = std::move(touches),
          .flops = 2 * rows * static_cast<double>(p.N) * static_cast<double>(p.K),
          .work = ProductWork{.product = p.product,
                              .tokens = experts ? std::max<std::int64_t>(1, s.expert_rows() / s.own_experts()) : s.tokens(),
                              .outputs = p.N,
                              .inputs = p.K},
          .workspace = std::max(workspace_of(p, s, experts, p.accumulate), workspace_of(p, s, experts, gradient || p.accumulate)),
          .run = [=, s = s](const At& at) {
            run(p, s, at.context,
                {.y = at.get<std::byte>(y) + (forward ? first : 0),
                 .x = at.get<std::byte>(x) + (forward ? 0 : first),
                 .with = at.get(with),
                 .offsets = experts ? at.get<std::int32_t>(offsets) : nullptr},
                gradient ? at.adds(y) : p.accumulate);
          }});
}

/// What is noted of a tensor that has an adapter: `inner` (M,r) = s x A^T, of which B makes what joins y.
std::string inner_of(const AdaptedColumns& columns) { return "inner of " + columns.tensor; }

/// y = x with features dropped, or with `adds` y += that.
void dropout(Recorder& r, const AdaptedColumns& columns, Value y, Value x, std::int64_t K, bool adds) {
  const ModelShape& s = r.s;
  const Value tokens = r.declare({.kind = ValueKind::token_numbers, .name = "token_numbers"});
  const bool cut = columns.tensor.ends_with(".wo") || columns.tensor.ends_with(".w_down");  // over tensor-parallel ranks, by features of x
  const kernels::Dropout shape{.M = s.tokens(),
                               .N = K,
                               .first = cut ? s.tp_index * K : 0,
                               .stream = static_cast<std::uint32_t>(r.layer()) << 8 | columns.target,
                               .seed = s.seed,
                               .rate = s.lora.dropout,
                               .accumulate = adds,
                               .dtype = s.dtype};
  r.call({.name = "dropout " + r.name_of(y),
          .touches = {{y, adds ? Access::add : write}, {x, read}, {tokens, read}},
          .run = [=, first = s.row_rank * s.tokens()](const At& at) {
            kernels::Dropout d = shape;
            d.y = at.get(y), d.x = at.get(x), d.tokens = at.get<std::int64_t>(tokens) + first;
            kernels::dropout(at.context, d);
          }});
}

bool drops(const ModelShape& s) { return s.lora.dropout > 0 && s.feed == Feed::samples; }

/// What is noted of such a tensor: its input with features dropped, else its input.
Value adapter_input(Recorder& r, const AdaptedColumns& columns, Value x, std::int64_t K) {
  if (!drops(r.s)) return x;
  Value& dropped = r.note("dropped " + columns.tensor);
  if (!dropped) dropped = r.remade(inner_name(columns.tensor) + "_input", {r.s.tokens(), K});
  return dropped;
}

void adapter_inner(Recorder& r, const AdaptedColumns& columns, Value inner, Value x, std::int64_t K, Value offsets) {
  const ModelShape& s = r.s;
  const Value input = adapter_input(r, columns, x, K);
  if (input != x) dropout(r, columns, input, x, K, false);
  adapter_product(r, {.product = Product::forward, .N = s.lora.rank, .K = K, .scale = static_cast<float>(lora_scale(s.lora))}, inner, input,
                  r.weight(lora_a(columns.tensor)), offsets);
}

/// d_inner from the columns of d_y (M,N) that the tensor makes; made once.
Value adapter_inner_gradient(Recorder& r, const AdaptedColumns& columns, Value d_y, std::int64_t N, Value offsets) {
  const ModelShape& s = r.s;
  Value& d_inner = r.note("gradient of " + inner_of(columns));
  if (d_inner) return d_inner;
  d_inner = r.value("d_" + inner_name(columns.tensor), {offsets ? s.arriving_rows() : s.tokens(), s.lora.rank});
  adapter_product(r,
                  {.product = Product::input_gradient,
                   .N = columns.count,
                   .K = s.lora.rank,
                   .scale = static_cast<float>(lora_scale(s.lora)),
                   .first = columns.first,
                   .stride = N},
                  d_inner, d_y, r.weight(lora_b(columns.tensor)), offsets);
  return d_inner;
}

}  // namespace

void add_adapters(Recorder& r, Value y, Value x, const std::string& w, std::int64_t N, std::int64_t K, Value offsets) {
  const ModelShape& s = r.s;
  for (const AdaptedColumns& columns : adapted_columns(s, w, N)) {
    const Value inner = r.value(inner_name(columns.tensor), {offsets ? s.arriving_rows() : s.tokens(), s.lora.rank});
    r.note(inner_of(columns)) = inner;
    adapter_inner(r, columns, inner, x, K, offsets);
    adapter_product(
        r, {.product = Product::forward, .N = columns.count, .K = s.lora.rank, .accumulate = true, .first = columns.first, .stride = N}, y,
        inner, r.weight(lora_b(columns.tensor)), offsets);
  }
}

void adapter_weight_gradients(Recorder& r, Value d_y, Value x, const std::string& w, std::int64_t N, std::int64_t K, Value offsets) {
  const ModelShape& s = r.s;
  const std::int64_t rank = s.lora.rank;
  for (const AdaptedColumns& columns : adapted_columns(s, w, N)) {
    const Value d_inner = adapter_inner_gradient(r, columns, d_y, N, offsets), inner = r.note(inner_of(columns));
    // Rows of x have been multiplied by what they count for, and the gradient of B asks for theirs.
    if (r.note(weighed(x))) adapter_inner(r, columns, inner, x, K, offsets);
    adapter_product(r, {.product = Product::weight_gradient, .N = columns.count, .K = rank, .first = columns.first, .stride = N},
                    r.gradient(lora_b(columns.tensor)), d_y, inner, offsets);
    adapter_product(r, {.product = Product::weight_gradient, .N = rank, .K = K}, r.gradient(lora_a(columns.tensor)), d_inner,
                    adapter_input(r, columns, x, K), offsets);
  }
}

void add_adapter_input_gradients(Recorder& r, Value d_x, Value d_y, const std::string& w, std::int64_t N, std::int64_t K, Value offsets) {
  const ModelShape& s = r.s;
  for (const AdaptedColumns& columns : adapted_columns(s, w, N)) {
    const Value d_input = drops(s) ? r.value("d_" + inner_name(columns.tensor) + "_input", {s.tokens(), K}) : d_x;
    adapter_product(r, {.product = Product::input_gradient, .N = s.lora.rank, .K = K, .accumulate = d_input == d_x}, d_input,
                    adapter_inner_gradient(r, columns, d_y, N, offsets), r.weight(lora_a(columns.tensor)), offsets);
    if (d_input != d_x) dropout(r, columns, d_x, d_input, K, true);
  }
}

}  // namespace tessera
