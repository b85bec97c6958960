#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "kernels/gemm/host_bytes.hpp"
#include "kernels/product_proof/product_proof.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels {
namespace {

/// Numbers in (-1, 1) of which no two that lie near are alike.
class Numbers {
 public:
  float next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<std::int32_t>(state_ >> 32)) * 0x1p-31f;
  }

 private:
  std::uint64_t state_ = 1;
};

/// Elements of a type, aligned as kernels want them.
class Elements {
 public:
  Elements(std::int64_t count, DType type) : type_(type), bytes_(static_cast<std::size_t>(count) * size_of(type) + host::line) {}
  std::byte* data() {
    auto* first = bytes_.data();
    return first + (host::line - reinterpret_cast<std::uintptr_t>(first) % host::line) % host::line;
  }
  void draw(std::int64_t count, Numbers& numbers) {
    with_float_type(type_, "product_proof", [&](auto type) {
      auto* to = reinterpret_cast<decltype(type)*>(data());
      for (std::int64_t i = 0; i < count; ++i) to[i] = decltype(type)(numbers.next());
    });
  }
  double get(std::int64_t i) {
    double value = 0;
    with_float_type(type_, "product_proof",
                    [&](auto type) { value = static_cast<double>(static_cast<float>(reinterpret_cast<decltype(type)*>(data())[i])); });
    return value;
  }

 private:
  DType type_;
  std::vector<std::byte> bytes_;
};

/// A way in which layers multiply.
struct Way {
  const char* name;
  bool a_transposed = false, b_transposed = false, accumulate = false, packed = false, bias = false, wide = false;
  float scale = 1, addend_scale = 0;
};
constexpr Way going_forward{.name = "forward", .b_transposed = true};
constexpr Way to_input{.name = "gradient of the input"};
constexpr Way to_weights{.name = "gradient of weights", .a_transposed = true, .accumulate = true};
constexpr Way of_packed{.name = "forward of packed weights", .b_transposed = true, .packed = true};
constexpr Way with_bias{.name = "forward with a bias", .b_transposed = true, .bias = true};
constexpr Way scaled_columns{.name = "scaled, with a scaled addend, into columns of a wider matrix",
                             .b_transposed = true,
                             .wide = true,
                             .scale = 0.75f,
                             .addend_scale = -1.5f};

struct Shape {
  std::int64_t M, N, K;
};
struct Trial {
  Way way;
  Shape shape;
};
// Reproducible products are cut into pieces of 256 rows and 128 columns: one row and one column are left over.
constexpr Shape pieces{257, 129, 67}, column{67, 1, 129}, row{1, 67, 129}, deep{5, 40, 1046};
constexpr Trial trials[] = {{going_forward, pieces},  {to_input, pieces},        {to_weights, pieces},
                            {of_packed, pieces},      {with_bias, {77, 48, 64}}, {scaled_columns, {77, 48, 64}},
                            {scaled_columns, column}, {going_forward, column},   {going_forward, row},
                            {to_weights, row},        {going_forward, deep},     {to_input, deep}};

/// Elements that are looked at: the last row, the last column, and drawn ones.
template <class F>
void for_elements(std::int64_t M, std::int64_t N, F f) {
  for (std::int64_t j = 0; j < N; ++j) f(M - 1, j);
  for (std::int64_t i = 0; i < M; ++i) f(i, N - 1);
  for (std::int64_t n = 0; n < 64; ++n) f(n * 7919 % M, n * 104729 % N);
}

/// How far a sum of K products may be from the sum in fp64, which has these magnitudes: each order of additions has this bound.
double allowed(std::int64_t K, double magnitudes, double value, DType out) {
  double rounding = 0;
  with_float_type(out, "product_proof", [&](auto type) {
    using T = decltype(type);
    rounding = std::is_same_v<T, float> ? 0x1p-23 : std::is_same_v<T, bf16> ? 0x1p-7 : 0x1p-10;
  });
  return static_cast<double>(K + 8) * 0x1p-22 * magnitudes + rounding * std::abs(value) + 1e-6;
}

/// A sum with the sum of its magnitudes.
struct Sum {
  double value = 0, magnitudes = 0;
  void add(double x) { value += x, magnitudes += std::abs(x); }
  Sum scaled(double by) const { return {value * by, magnitudes * std::abs(by)}; }
};

std::string compare(double found, const Sum& right, std::int64_t K, DType out, std::int64_t i, std::int64_t j) {
  if (std::abs(found - right.value) <= allowed(K, right.magnitudes, right.value, out)) return "";
  return fmt::format("element ({}, {}) is {:.7g} and should be {:.7g}", i, j, found, right.value);
}

std::string fault_of(const Trial& t, DType in, bool reproducible, const ProductsUnderTest& products) {
  const auto [M, N, K] = t.shape;
  const DType out = t.way.accumulate ? DType::f32 : in;
  const std::int64_t c_step = N + (t.way.wide ? 3 : 0);
  Numbers numbers;
  Elements a(M * K, in), b(N * K, in), c(M * c_step, out), addend(M * c_step, out), bias(N, in);
  a.draw(M * K, numbers), b.draw(N * K, numbers), c.draw(M * c_step, numbers), addend.draw(M * c_step, numbers), bias.draw(N, numbers);
  std::vector<double> before;
  for (std::int64_t i = 0; i < M * c_step; ++i) before.push_back(c.get(i));
  Gemm g{.c = c.data(),
         .a = a.data(),
         .b = b.data(),
         .M = M,
         .N = N,
         .K = K,
         .a_transposed = t.way.a_transposed,
         .b_transposed = t.way.b_transposed,
         .accumulate = t.way.accumulate,
         .in = in,
         .out = out,
         .bias = t.way.bias ? bias.data() : nullptr,
         .addend = t.way.addend_scale != 0 ? addend.data() : nullptr,
         .scale = t.way.scale,
         .addend_scale = t.way.addend_scale != 0 ? t.way.addend_scale : 1,
         .c_stride = c_step};
  Elements packed_b(0, DType::f32);
  if (t.way.packed) {
    const std::size_t bytes = host::gemm_packed_bytes(g);
    if (bytes == 0) return "";
    packed_b = Elements(ceil_div(static_cast<std::int64_t>(bytes), sizeof(float)), DType::f32);
    host::gemm_pack_b({}, packed_b.data(), g);
    g.b = packed_b.data(), g.b_packed = true;
  }
  const std::size_t room = host::gemm_workspace_bytes(g);
  Elements workspace(ceil_div(static_cast<std::int64_t>(room), sizeof(float)), DType::f32);
  products.gemm({.workspace = {workspace.data(), room}, .reproducible = reproducible}, g);
  std::string fault;
  for_elements(M, N, [&](std::int64_t i, std::int64_t j) {
    if (!fault.empty()) return;
    Sum right;
    for (std::int64_t k = 0; k < K; ++k)
      right.add(a.get(t.way.a_transposed ? k * M + i : i * K + k) * b.get(t.way.b_transposed ? j * K + k : k * N + j));
    right = right.scaled(t.way.scale);
    if (t.way.bias) right.add(bias.get(j));
    if (t.way.accumulate) right.add(before[static_cast<std::size_t>(i * c_step + j)]);
    if (t.way.addend_scale != 0) right.add(t.way.addend_scale * addend.get(i * c_step + j));
    fault = compare(c.get(i * c_step + j), right, K, out, i, j);
  });
  return fault.empty() ? "" : fmt::format("{}, M={} N={} K={}: {}", t.way.name, M, N, K, fault);
}

/// Of experts with many rows, one and none.
std::string fault_of_experts(DType in, bool transposed, const ProductsUnderTest& products) {
  constexpr std::int64_t rows = 71, E = 3, N = 49, K = 70;
  const std::int32_t offsets[] = {0, 70, 70, 71};
  Numbers numbers;
  Elements a(rows * K, in), b(E * N * K, in), c(rows * N, in);
  a.draw(rows * K, numbers), b.draw(E * N * K, numbers), c.draw(rows * N, numbers);
  const GroupedGemm g{.c = c.data(),
                      .a = a.data(),
                      .b = b.data(),
                      .offsets = offsets,
                      .rows = rows,
                      .E = E,
                      .N = N,
                      .K = K,
                      .b_transposed = transposed,
                      .dtype = in};
  const std::size_t room = host::grouped_gemm_workspace_bytes(g);
  Elements workspace(ceil_div(static_cast<std::int64_t>(room), sizeof(float)), DType::f32);
  products.grouped({.workspace = {workspace.data(), room}, .reproducible = true}, g);
  std::string fault;
  for_elements(rows, N, [&](std::int64_t i, std::int64_t j) {
    if (!fault.empty()) return;
    const std::int64_t expert = i < 70 ? 0 : 2;
    Sum right;
    for (std::int64_t k = 0; k < K; ++k) right.add(a.get(i * K + k) * b.get(expert * N * K + (transposed ? j * K + k : k * N + j)));
    fault = compare(c.get(i * N + j), right, K, in, i, j);
  });
  return fault.empty() ? "" : fmt::format("products of experts, {} rows, N={} K={}: {}", rows, N, K, fault);
}

}  // namespace

std::string fault_of_products(DType in, bool reproducible, const ProductsUnderTest& products) {
  for (const Trial& trial : trials)
    if (std::string fault = fault_of(trial, in, reproducible, products); !fault.empty()) return fault;
  for (const bool transposed : {true, false})
    if (std::string fault = fault_of_experts(in, transposed, products); !fault.empty()) return fault;
  return "";
}

}  // namespace tessera::kernels
