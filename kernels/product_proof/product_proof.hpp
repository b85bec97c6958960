// Whether products on this host are what they are defined as. A library may be wrong with some versions, shapes and processors: oneDNN 3.7
// writes a column into a wider matrix wrongly with AVX-512.
#pragma once
#include <functional>
#include <string>

#include "kernels/gemm/gemm.hpp"
#include "kernels/grouped_gemm/grouped_gemm.hpp"

namespace tessera::kernels {

/// What multiplies; tests have others, which are wrong.
struct ProductsUnderTest {
  std::function<void(const Context&, const Gemm&)> gemm = host::gemm;
  std::function<void(const Context&, const GroupedGemm&)> grouped = host::grouped_gemm;
};

/// Multiplies a few odd shapes in each way that layers of type `in` do (forward, both gradients, packed, with bias, scaled, into columns of
/// a wider matrix, one row, of experts), and compares last rows, last columns and drawn elements with sums in fp64. "" where all agree;
/// else which product is wrong: shape, way, element, what it is and what it should be. Some milliseconds.
std::string fault_of_products(DType in, bool reproducible, const ProductsUnderTest& products = {});

}  // namespace tessera::kernels
