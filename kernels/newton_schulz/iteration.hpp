// The steps of the iteration as products, and where their operands lie: the same for host and GPU.
#pragma once
#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/gemm/gemm.hpp"
#include "kernels/newton_schulz/newton_schulz.hpp"

namespace tessera::kernels::newton_schulz_detail {

struct Polynomial {
  float a, b, c;
};
struct Iteration {
  std::span<const Polynomial, 5> steps;  // an odd number: the last one's result is not in the workspace
  double stretch, least;                 ///< x is divided by stretch |x| + least
};
inline Iteration iteration_of(OrthogonalSteps which) {
  static constexpr Polynomial simple = {3.4445f, -4.7750f, 2.0315f};
  static constexpr Polynomial same[] = {simple, simple, simple, simple, simple};
  static constexpr Polynomial quintic[] = {{4.0848f, -6.8946f, 2.9270f},
                                           {3.9505f, -6.3029f, 2.6377f},
                                           {3.7418f, -5.5913f, 2.3037f},
                                           {2.8769f, -3.1427f, 1.2046f},
                                           {2.8366f, -3.0525f, 1.2012f}};
  static constexpr Polynomial polar_express[] = {{8.15655f, -22.48329f, 15.87877f},
                                                 {4.04293f, -2.80892f, 0.50002f},
                                                 {3.89167f, -2.77248f, 0.50606f},
                                                 {3.28575f, -2.36813f, 0.46449f},
                                                 {2.34654f, -1.70978f, 0.42324f}};
  if (which == OrthogonalSteps::polar_express) return {polar_express, 1.01, 1e-6};
  return {which == OrthogonalSteps::quintic ? quintic : same, 1, 1e-7};
}

/// Elements whose squares have a sum of their own: element i of them goes to chain i % 32, each chain runs in order, and the chains are
/// joined by halves. What the matrix has not is 0. The blocks' sums are joined in the same way by norm_chains.
inline constexpr std::int64_t norm_block = 256;
inline constexpr int norm_chains = 256;
inline std::int64_t norm_blocks(const NewtonSchulz& p) { return (p.rows * p.columns + norm_block - 1) / norm_block; }

/// What X is multiplied by at first.
TESSERA_BOTH inline float factor_of(double squares, double stretch, double least) {
  return static_cast<float>(1 / (::sqrt(squares) * stretch + least));
}

inline std::int64_t inner(const NewtonSchulz& p) { return std::min(p.rows, p.columns); }

/// A = X X^T, or of a tall X its transpose's.
inline Gemm gram(const NewtonSchulz& p, void* to, const void* x) {
  const bool tall = p.rows > p.columns;
  return {.c = to,
          .a = x,
          .b = x,
          .M = inner(p),
          .N = inner(p),
          .K = std::max(p.rows, p.columns),
          .a_transposed = tall,
          .b_transposed = !tall,
          .in = DType::bf16,
          .out = DType::bf16};
}
/// b A + c A A^T: A is symmetric, and rows beside each other are read as they lie.
inline Gemm polynomial(const NewtonSchulz& p, void* to, const void* gram, const Polynomial& k) {
  const std::int64_t m = inner(p);
  return {.c = to,
          .a = gram,
          .b = gram,
          .M = m,
          .N = m,
          .K = m,
          .b_transposed = true,
          .in = DType::bf16,
          .out = DType::bf16,
          .addend = gram,
          .scale = k.c,
          .addend_scale = k.b};
}
/// scale (a X + B X), or of a tall X scale (a X + X B^T).
inline Gemm step(const NewtonSchulz& p, void* to, const void* x, const void* polynomial, float a, float scale) {
  const bool tall = p.rows > p.columns;
  return {.c = to,
          .a = tall ? x : polynomial,
          .b = tall ? polynomial : x,
          .M = p.rows,
          .N = p.columns,
          .K = inner(p),
          .b_transposed = tall,
          .in = DType::bf16,
          .out = DType::bf16,
          .addend = x,
          .scale = scale,
          .addend_scale = scale * a};
}

inline std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

inline bool is_legal(const NewtonSchulz& p) {
  return p.rows > 0 && p.columns > 0 && p.parts > 0 && (p.parts_of_columns ? p.columns : p.rows) % p.parts == 0 &&
         (p.parts == 1 || p.out != p.x);
}

/// Whether results are parted again.
inline bool parts_results(const NewtonSchulz& p) { return p.parts > 1 && p.parts_of_columns; }

/// Where temporary memory is: X before every other step, after the others where the result is in parts, A, its polynomial, sums of squares,
/// then that of products.
struct Places {
  std::size_t result, gram, polynomial, squares, factor, products, end;
};

/// Rows of elements that are copied from or to a place of others' neighbours.
struct Rows {
  bf16* to;
  const bf16* from;
  std::int64_t rows, columns, to_step, from_step;
};
inline Rows part_of_x(const NewtonSchulz& p, bf16* x, std::int64_t part) {
  const bf16* from = p.x + part * p.part_step;
  if (!p.parts_of_columns) return {x + part * (p.rows / p.parts) * p.columns, from, p.rows / p.parts, p.columns, p.columns, p.columns};
  const std::int64_t columns = p.columns / p.parts;
  return {x + part * columns, from, p.rows, columns, p.columns, columns};
}
inline Rows part_of_result(const NewtonSchulz& p, const bf16* result, std::int64_t part) {
  const std::int64_t columns = p.columns / p.parts;
  return {p.out + part * p.rows * columns, result + part * columns, p.rows, columns, columns, p.columns};
}
/// The products in order, where X lies at the begin of the workspace. The last one's result is `out`, or what will be parted.
template <class Product>
void for_each_product(const NewtonSchulz& p, std::byte* workspace, const Places& at, Product&& product) {
  void *x = workspace, *next = parts_results(p) ? static_cast<void*>(workspace + at.result) : p.out, *square = workspace + at.gram,
       *sum = workspace + at.polynomial;
  const std::span steps = iteration_of(p.steps).steps;
  for (std::size_t i = 0; i < steps.size(); ++i, std::swap(x, next)) {
    product(gram(p, square, x));
    product(polynomial(p, sum, square, steps[i]));
    product(step(p, next, x, sum, steps[i].a, i + 1 == steps.size() ? p.scale : 1));
  }
}

inline Places places_of(const NewtonSchulz& p, Backend backend) {
  const auto bytes = [](std::int64_t n) { return aligned(static_cast<std::size_t>(n) * sizeof(bf16)); };
  Places at{};
  at.result = bytes(p.rows * p.columns);
  at.gram = at.result + (parts_results(p) ? at.result : 0);
  at.polynomial = at.gram + bytes(inner(p) * inner(p));
  at.squares = at.polynomial + bytes(inner(p) * inner(p));
  at.factor = at.squares + aligned(static_cast<std::size_t>(norm_blocks(p)) * sizeof(double));
  at.products = at.factor + aligned(sizeof(float));
  at.end = at.products;
  // No product is made: operands only have to lie apart.
  static std::byte nowhere[4];
  NewtonSchulz shape = p;
  shape.out = reinterpret_cast<bf16*>(nowhere + 2);
  for_each_product(shape, nowhere, at, [&](const Gemm& g) { at.end = std::max(at.end, at.products + gemm_workspace_bytes(g, backend)); });
  return at;
}

/// Products by `gemm` of one backend: the host's file calls no GPU's.
template <class Product>
void iterate(const Context& context, const NewtonSchulz& p, const Places& at, Product&& gemm) {
  const Context of_products{context.workspace.subspan(at.products), context.reproducible, context.backend, context.stream};
  for_each_product(p, context.workspace.data(), at, [&](const Gemm& g) { gemm(of_products, g); });
}

}  // namespace tessera::kernels::newton_schulz_detail
