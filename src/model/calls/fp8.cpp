#include "model/calls/fp8.hpp"

namespace tessera {
namespace {

using kernels::Fp8Operand;
using kernels::Fp8Scaling;
using kernels::Gemm;
using products::Product;

Fp8Scaling scaling_of(Fp8Recipe recipe, bool is_weight) {
  switch (recipe) {
    case Fp8Recipe::tensorwise:
      return Fp8Scaling::tensor;
    case Fp8Recipe::rowwise:
      return Fp8Scaling::rows;
    case Fp8Recipe::blockwise:
      return is_weight ? Fp8Scaling::square_blocks : Fp8Scaling::row_blocks;
    case Fp8Recipe::none:
      break;
  }
  fail(ExitCode::internal, "scales of no recipe");
}

/// b is the weight but in its own gradient; a is a gradient but in the forward product.
Gemm::Fp8 operands_of(Fp8Recipe recipe, Product product) {
  const bool gradient = product != Product::forward && recipe != Fp8Recipe::blockwise;
  return {.a = {.type = gradient ? DType::e5m2 : DType::e4m3, .scaling = scaling_of(recipe, false)},
          .b = {.type = DType::e4m3, .scaling = scaling_of(recipe, product != Product::weight_gradient)}};
}

/// Places in the workspace of a product of codes: those of a and b, their scales, and what the product itself needs.
struct Places {
  std::size_t b = 0, a_scales = 0, b_scales = 0, rest = 0;  ///< a is at 0
  Places(const Gemm& g, const Gemm::Fp8& of) {
    const auto bytes = [](std::int64_t n, std::size_t size) { return (static_cast<std::size_t>(n) * size + 255) / 256 * 256; };
    b = bytes(g.M * g.K, 1);
    a_scales = b + bytes(g.N * g.K, 1);
    b_scales = a_scales + bytes(kernels::fp8_scales(of.a.scaling, g.M, g.K), sizeof(float));
    rest = b_scales + bytes(kernels::fp8_scales(of.b.scaling, g.N, g.K), sizeof(float));
  }
};

/// `g` as a product of codes, whose rows are those that it does not sum over.
Gemm of_codes(Gemm g, const Gemm::Fp8& of) {
  g.a_transposed = false, g.b_transposed = true, g.fp8 = of;
  return g;
}

}  // namespace

Multiply::Multiply(const ModelShape& shape, const std::string& w, Product product)
    : recipe_(shape.fp8.takes(w) ? shape.fp8.recipe : Fp8Recipe::none), product_(product), backend_(shape.backend) {}

std::size_t Multiply::workspace_bytes(const Gemm& g) const {
  if (recipe_ == Fp8Recipe::none) return kernels::gemm_workspace_bytes(g, backend_);
  const Gemm::Fp8 of = operands_of(recipe_, product_);
  return Places(g, of).rest + kernels::gemm_workspace_bytes(of_codes(g, of), backend_);
}

void Multiply::operator()(const kernels::Context& context, const Gemm& g) const {
  if (recipe_ == Fp8Recipe::none) return kernels::gemm(context, g);
  Gemm::Fp8 of = operands_of(recipe_, product_);
  const Places at(g, of);
  std::byte* base = context.workspace.data();
  const auto quantise = [&](Fp8Operand& operand, std::size_t codes, std::size_t scales, const void* x, std::int64_t rows, bool transposed) {
    auto* made = reinterpret_cast<float*>(base + scales);
    kernels::fp8_quantize(context, {.codes = reinterpret_cast<std::uint8_t*>(base + codes),
                                    .scales = made,
                                    .x = x,
                                    .rows = transposed ? g.K : rows,
                                    .columns = transposed ? rows : g.K,
                                    .transposed = transposed,
                                    .dtype = g.in,
                                    .type = operand.type,
                                    .scaling = operand.scaling});
    operand.scales = made;
  };
  quantise(of.a, 0, at.a_scales, g.a, g.M, g.a_transposed);
  quantise(of.b, at.b, at.b_scales, g.b, g.N, !g.b_transposed);
  Gemm product = of_codes(g, of);
  product.a = base, product.b = base + at.b;
  kernels::Context rest = context;
  rest.workspace = context.workspace.subspan(at.rest);
  kernels::gemm(rest, product);
}

double Multiply::quantised_bytes(const Gemm& g) const {
  if (recipe_ == Fp8Recipe::none) return 0;
  // Largest magnitudes are found in a pass of their own where they are those of more than a block.
  const double passes = recipe_ == Fp8Recipe::blockwise ? 1 : 2;
  return static_cast<double>((g.M + g.N) * g.K) * (passes * static_cast<double>(size_of(g.in)) + 1);
}

}  // namespace tessera
