#include "model/calls/fp8.hpp"

namespace tessera {
namespace {

using kernels::Fp8Scaling;
using kernels::Gemm;
using products::Product;

Fp8Scaling scaling_of(Fp8Recipe recipe, bool is_weight) {
  switch (recipe) {
    case Fp8Recipe::tensorwise:
    case Fp8Recipe::tensorwise_delayed:
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

/// Places in the workspace of a product of codes: those of a, b as gemm_pack_b makes it, a's scales, and what the product itself needs.
struct Places {
  std::size_t b = 0, a_scales = 0, rest = 0;  ///< a is at 0
  Places(const Gemm& stored, kernels::Backend backend) {
    const auto whole = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
    const std::int64_t scales = kernels::fp8_scales(stored.fp8->a.scaling, stored.M, stored.K);
    b = whole(static_cast<std::size_t>(stored.M * stored.K));
    a_scales = b + whole(kernels::gemm_packed_bytes(stored, backend));
    rest = a_scales + whole(static_cast<std::size_t>(scales) * sizeof(float));
  }
};

/// A product of codes, whose rows are those that it does not sum over.
Gemm of_codes(Gemm stored) {
  stored.a_transposed = false, stored.b_transposed = true;
  return stored;
}

void require_gpu_product(Fp8Recipe recipe, const std::string& w, const Gemm& g) {
  if (recipe == Fp8Recipe::blockwise)
    fail(ExitCode::usage,
         "precision.fp8 = \"blockwise\": a GPU's blockwise products are not in this version. Set \"tensorwise\" or \"rowwise\", or "
         "run.device = \"host\", which emulates them");
  for (const std::int64_t dim : {g.M, g.N, g.K})
    if (dim % kernels::fp8_dim != 0)
      fail(ExitCode::usage,
           "precision.fp8: a product of {} has {} x {} elements and sums {} terms of each, but a GPU's fp8 products need multiples of {}. "
           "Add it to precision.fp8_skip, or choose such sizes and tokens of a micro-batch (batch.micro x batch.sequence_length)",
           w, g.M, g.N, g.K, kernels::fp8_dim);
}

}  // namespace

Multiply::Multiply(Recorder& r, const std::string& w, Product product)
    : recipe_(r.s.fp8.takes(w) ? r.s.fp8.recipe : Fp8Recipe::none), w_(w), product_(product), backend_(r.s.backend) {
  if (!r.s.fp8.of_tensors() || recipe_ == Fp8Recipe::none) return;
  if (product_ != Product::weight_gradient) weight_multiplier_ = r.fp8_weight_multiplier(w), weight_largest_ = r.fp8_weight_largest(w);
  if (recipe_ != Fp8Recipe::tensorwise_delayed) return;
  multipliers_ = r.fp8_multipliers(), largest_ = r.fp8_largest();
  input_ = r.s.fp8.history_of(w, kernels::Fp8Tensor::input), gradient_ = r.s.fp8.history_of(w, kernels::Fp8Tensor::gradient);
}

std::vector<Touch> Multiply::with_scales(std::vector<Touch> touches) const {
  for (const Value value : {multipliers_, largest_, weight_multiplier_, weight_largest_})
    if (value) touches.push_back({value, Access::read});
  return touches;
}

kernels::Fp8Delayed Multiply::delayed(const At& at, kernels::Fp8Tensor tensor) const {
  if (tensor == kernels::Fp8Tensor::weight) return {at.get<float>(weight_multiplier_), at.get<float>(weight_largest_)};
  if (!multipliers_) return {};
  const std::int64_t history = tensor == kernels::Fp8Tensor::input ? input_ : gradient_;
  float* largest = at.get<float>(largest_);
  return {at.get<float>(multipliers_) + history, largest ? largest + history : nullptr};
}

Gemm Multiply::stored(Gemm g) const {
  if (recipe_ == Fp8Recipe::none) return g;
  if (backend_ == kernels::Backend::cuda) require_gpu_product(recipe_, w_, g);
  g.fp8 = operands_of(recipe_, product_);
  return g;
}

std::size_t Multiply::workspace_bytes(const Gemm& g) const {
  const Gemm stored = this->stored(g);
  if (!stored.fp8) return kernels::gemm_workspace_bytes(g, backend_);
  return Places(stored, backend_).rest + kernels::gemm_workspace_bytes(of_codes(stored), backend_);
}

void Multiply::operator()(const At& values, const Gemm& g) const {
  using kernels::Fp8Tensor;
  const kernels::Context& context = values.context;
  Gemm stored = this->stored(g);
  if (!stored.fp8) return kernels::gemm(context, g);
  const Places at(stored, backend_);
  std::byte* base = context.workspace.data();
  auto* a_scales = reinterpret_cast<float*>(base + at.a_scales);
  kernels::fp8_quantize(context, {.codes = reinterpret_cast<std::uint8_t*>(base),
                                  .scales = a_scales,
                                  .x = g.a,
                                  .rows = g.a_transposed ? g.K : g.M,
                                  .columns = g.a_transposed ? g.M : g.K,
                                  .transposed = g.a_transposed,
                                  .dtype = g.in,
                                  .type = stored.fp8->a.type,
                                  .scaling = stored.fp8->a.scaling,
                                  .delayed = delayed(values, product_ == Product::forward ? Fp8Tensor::input : Fp8Tensor::gradient)});
  stored.fp8->b.delayed = delayed(values, product_ == Product::weight_gradient ? Fp8Tensor::input : Fp8Tensor::weight);
  if (!g.b_packed) kernels::gemm_pack_b(context, base + at.b, stored);
  const kernels::PackedCodes b = kernels::packed_codes(g.b_packed ? g.b : base + at.b, g);
  Gemm product = of_codes(stored);
  product.a = base, product.b = b.codes, product.b_packed = false;
  product.fp8->a.scales = a_scales, product.fp8->b.scales = b.scales;
  kernels::Context rest = context;
  rest.workspace = context.workspace.subspan(at.rest);
  kernels::gemm(rest, product);
}

double Multiply::quantised_bytes(const Gemm& g) const {
  if (recipe_ == Fp8Recipe::none) return 0;
  // Largest magnitudes are found in a pass of their own where scales are made of them and they are those of more than a block.
  const double passes = recipe_ == Fp8Recipe::blockwise || recipe_ == Fp8Recipe::tensorwise_delayed ? 1 : 2;
  return static_cast<double>((g.M + g.N) * g.K) * (passes * static_cast<double>(size_of(g.in)) + 1);
}

}  // namespace tessera
