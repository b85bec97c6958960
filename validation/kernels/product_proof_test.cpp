// The proof of products at the start of a run: silent where they are right, and it finds what libraries do wrong.
#include "kernels/product_proof/product_proof.hpp"

#include <gtest/gtest.h>

#include <map>

#include "validation/kernels/gemm_test_support.hpp"

namespace tessera::kernels::product_proof_test {
namespace {

class Types : public ::testing::TestWithParam<std::pair<DType, bool>> {};

TEST_P(Types, AreRightHere) {
  const auto [in, reproducible] = GetParam();
  EXPECT_EQ(fault_of_products(in, reproducible), "");
}

// Each way is tried: a product that is wrong in one element of it is found.
TEST_P(Types, AWrongElementOfAnyProductIsFound) {
  const auto [in, reproducible] = GetParam();
  int products = 0, found = 0;
  const auto spoil = [&](void* c, std::int64_t element, DType type) {
    auto* at = static_cast<std::byte*>(c) + static_cast<std::size_t>(element) * size_of(type);
    if (type == DType::f32)
      *reinterpret_cast<float*>(at) += 0.25f;
    else if (type == DType::bf16)
      *reinterpret_cast<bf16*>(at) = bf16(static_cast<float>(*reinterpret_cast<bf16*>(at)) + 2);
    else
      *reinterpret_cast<f16*>(at) = f16(static_cast<float>(*reinterpret_cast<f16*>(at)) + 2);
  };
  for (int wrong = 0; wrong <= products; ++wrong) {
    int number = 0;
    const ProductsUnderTest broken{.gemm =
                                       [&](const Context& context, const Gemm& g) {
                                         host::gemm(context, g);
                                         // What oneDNN 3.7 does: the last column of the last row goes elsewhere.
                                         if (number++ == wrong) spoil(g.c, (g.M - 1) * g.c_step() + g.N - 1, g.out);
                                       },
                                   .grouped =
                                       [&](const Context& context, const GroupedGemm& g) {
                                         host::grouped_gemm(context, g);
                                         if (number++ == wrong) spoil(g.c, g.rows * g.N - 1, g.dtype);
                                       }};
    const std::string fault = fault_of_products(in, reproducible, broken);
    products = std::max(products, number);
    if (wrong == products) break;  // none was wrong
    EXPECT_NE(fault, "") << "product " << wrong;
    EXPECT_NE(fault.find("should be"), fault.npos) << fault;
    ++found;
  }
  EXPECT_GE(found, 10);
}

INSTANTIATE_TEST_SUITE_P(, Types,
                         ::testing::Values(std::pair{DType::f32, false}, std::pair{DType::f32, true}, std::pair{DType::bf16, false},
                                           std::pair{DType::bf16, true}, std::pair{DType::f16, true}),
                         [](const auto& info) {
                           return std::string(name_of(info.param.first)) + (info.param.second ? "_reproducible" : "_fast");
                         });

}  // namespace
}  // namespace tessera::kernels::product_proof_test
