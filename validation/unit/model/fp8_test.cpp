// Which products are in fp8, and what they are of.
#include "model/calls/fp8.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "model/table/fp8.hpp"
#include "model/table/parameters.hpp"

namespace tessera::fp8_test {
namespace {

using products::Product;

constexpr Fp8Recipe recipes[] = {Fp8Recipe::tensorwise, Fp8Recipe::tensorwise_delayed, Fp8Recipe::rowwise, Fp8Recipe::blockwise};

TEST(Fp8Skip, APatternStandsForNamesAndForWhatBeginsWithIt) {
  const Fp8Shape fp8{.recipe = Fp8Recipe::rowwise, .skip = {"head", "layers.1", "*.wo"}};
  for (const char* taken : {"layers.0.attention.wq", "layers.10.mlp.w_down", "embedding.weight", "layers.0.mlp.w_gate"})
    EXPECT_TRUE(fp8.takes(taken)) << taken;
  for (const char* left : {"head.weight", "layers.1.mlp.w_down", "layers.0.attention.wo"}) EXPECT_FALSE(fp8.takes(left)) << left;
  EXPECT_FALSE(Fp8Shape{}.takes("layers.0.attention.wq")) << "without a recipe";
}

std::string fault(const std::vector<std::string>& skip) {
  ModelKeys model;
  model.vocab = 100, model.width = 32, model.layers = 2, model.heads = 2, model.kv_heads = 2, model.head_dim = 16, model.ff_width = 64;
  PrecisionKeys precision;
  precision.fp8 = Fp8Recipe::tensorwise, precision.fp8_skip = skip;
  try {
    check_fp8_skip(parameter_table(model), precision);
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ExitCode::usage);
    return e.what();
  }
  return "";
}
bool says(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST(Fp8Skip, PatternsThatCannotBeFollowedAreRefused) {
  EXPECT_EQ(fault({"head", "embedding"}), "");
  EXPECT_EQ(fault({}), "");
  EXPECT_TRUE(says(fault({"layers.2"}), "no tensor of this model matches \"layers.2\"; the nearest names are"));
  EXPECT_TRUE(says(fault({"*.w_up"}), "w_gate and layers.0.mlp.w_up, but only layers.0.mlp.w_up is skipped"));
  EXPECT_TRUE(says(fault({"*"}), "leaves no product in fp8"));
}

std::vector<bf16> values(std::int64_t n, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<bf16> x;
  for (std::int64_t i = 0; i < n; ++i) x.emplace_back(normal(engine));
  return x;
}

/// What a product leaves in the histories of its matrix, the second of two.
void expect_largest(Product product, const std::vector<float>& found, const std::vector<bf16>& x, const std::vector<bf16>& w,
                    const std::vector<bf16>& dy) {
  const auto most = [](const std::vector<bf16>& of) {
    float largest = 0;
    for (const bf16 value : of) largest = std::max(largest, std::abs(static_cast<float>(value)));
    return largest;
  };
  const bool reads_x = product != Product::input_gradient, reads_w = product != Product::weight_gradient,
             reads_dy = product != Product::forward;
  EXPECT_EQ(found, (std::vector<float>{0, reads_x ? most(x) : 0, 0, reads_dy ? most(dy) : 0, 0, reads_w ? most(w) : 0}));
}

/// Of the fp64 product of what was not rounded, an error's share: that of operands with three bits after the point, or two.
double error_of(Fp8Recipe recipe, Product product) {
  constexpr std::int64_t M = 48, N = 80, K = 112;
  const products::Dims dims{M, N, K, DType::bf16};
  const auto x = values(M * K, 1), w = values(N * K, 2), dy = values(M * N, 3);
  ModelShape shape;
  shape.fp8.recipe = recipe, shape.fp8.matrices = {"layers.0.attention.wo", "layers.0.attention.wq"};
  Recorder recorder(shape, "products");
  const Multiply multiply(recorder, "layers.0.attention.wq", product);
  std::vector<float> multipliers(6, 64.f), largest(6, 0.f);
  std::vector<void*> addresses;
  for (const ValueInfo& v : recorder.take().values) {
    const bool given = recipe == Fp8Recipe::tensorwise_delayed;
    addresses.push_back(v.kind == ValueKind::fp8_multipliers         ? multipliers.data()
                        : v.kind == ValueKind::fp8_largest           ? largest.data()
                        : !given                                     ? nullptr
                        : v.kind == ValueKind::fp8_weight_multiplier ? &multipliers[5]
                                                                     : &largest[5]);
  }
  std::vector<bf16> y(static_cast<std::size_t>(M * N)), dx(static_cast<std::size_t>(M * K));
  std::vector<float> dw(static_cast<std::size_t>(N * K));
  const kernels::Gemm g = product == Product::forward          ? products::forward(dims, y.data(), x.data(), {w.data()})
                          : product == Product::input_gradient ? products::input_gradient(dims, dx.data(), dy.data(), {w.data()})
                                                               : products::weight_gradient(dims, dw.data(), dy.data(), x.data(), false);
  std::vector<std::byte> bytes(multiply.workspace_bytes(g) + 64);
  auto* aligned = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(bytes.data()) + 63) / 64 * 64);
  const kernels::Context context{.workspace = {aligned, bytes.size() - 64}};
  multiply(At(addresses, {}, context), g);
  if (recipe == Fp8Recipe::tensorwise_delayed) expect_largest(product, largest, x, w, dy);
  const auto number = [](const auto& of, std::int64_t i) {
    return static_cast<double>(static_cast<float>(of[static_cast<std::size_t>(i)]));
  };
  double difference = 0, norm = 0;
  for (std::int64_t i = 0; i < g.M; ++i)
    for (std::int64_t j = 0; j < g.N; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < g.K; ++k)
        sum += product == Product::forward          ? number(x, i * K + k) * number(w, j * K + k)
               : product == Product::input_gradient ? number(dy, i * N + k) * number(w, k * K + j)
                                                    : number(dy, k * N + i) * number(x, k * K + j);
      const double made = product == Product::forward          ? number(y, i * N + j)
                          : product == Product::input_gradient ? number(dx, i * K + j)
                                                               : number(dw, i * K + j);
      difference += (made - sum) * (made - sum), norm += sum * sum;
    }
  return std::sqrt(difference / norm);
}

TEST(Fp8Products, AreNearThoseOfWhatTheyRoundAndNoNearer) {
  for (const Fp8Recipe recipe : recipes)
    for (const Product product : {Product::forward, Product::input_gradient, Product::weight_gradient}) {
      const bool narrow = product != Product::forward && recipe != Fp8Recipe::blockwise;  // a gradient in E5M2
      const double error = error_of(recipe, product);
      EXPECT_GT(error, narrow ? 0.04 : 0.025) << static_cast<int>(recipe) << " " << static_cast<int>(product);
      EXPECT_LT(error, narrow ? 0.08 : 0.05) << static_cast<int>(recipe) << " " << static_cast<int>(product);
    }
  for (const Product product : {Product::forward, Product::input_gradient, Product::weight_gradient})
    EXPECT_LT(error_of(Fp8Recipe::none, product), 0.004);
}

TEST(Fp8Products, OfAGpuHaveItsSizesAndScales) {
  const auto fault = [](Fp8Recipe recipe, const products::Dims& dims) -> std::string {
    ModelShape shape;
    shape.fp8.recipe = recipe, shape.backend = kernels::Backend::cuda;
    try {
      Recorder recorder(shape, "products");
      Multiply(recorder, "layers.0.mlp.w_down", Product::forward).workspace_bytes(products::forward(dims, nullptr, nullptr, {}));
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ExitCode::usage);
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(fault(Fp8Recipe::tensorwise, {48, 80, 112, DType::bf16}), "");
  EXPECT_EQ(fault(Fp8Recipe::rowwise, {48, 80, 112, DType::bf16}), "");
  EXPECT_TRUE(
      says(fault(Fp8Recipe::tensorwise, {40, 80, 112, DType::bf16}), "layers.0.mlp.w_down has 40 x 80 elements and sums 112 terms"));
  EXPECT_TRUE(says(fault(Fp8Recipe::blockwise, {48, 80, 112, DType::bf16}), "Set \"tensorwise\" or \"rowwise\""));
}

}  // namespace
}  // namespace tessera::fp8_test
