#include "train/machine_rate.hpp"

#include <algorithm>
#include <vector>

#include "base/clock.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/gemm/gemm.hpp"

namespace tessera {

double measure_gemm_rate(DType dtype) {
  constexpr std::int64_t n = 1024;
  std::vector<float> values(n * n);
  kernels::normal({}, values.data(), n * n, 1.0f, 1, 1, 0);
  const auto bytes = static_cast<std::size_t>(n * n) * size_of(dtype);
  std::vector<std::byte> a(bytes), b(bytes), c(bytes);
  kernels::cast({}, a.data(), dtype, values.data(), DType::f32, n * n);
  kernels::cast({}, b.data(), dtype, values.data(), DType::f32, n * n);
  const kernels::Gemm product{
      .c = c.data(), .a = a.data(), .b = b.data(), .M = n, .N = n, .K = n, .b_transposed = true, .in = dtype, .out = dtype};
  // 64-byte aligned, as kernels ask.
  const std::size_t workspace_bytes = kernels::gemm_workspace_bytes(product);
  std::vector<std::byte> raw(workspace_bytes + 64);
  auto* aligned = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::intptr_t>(raw.data()), 64));
  const kernels::Context context{{aligned, workspace_bytes}, false};
  double best = 1e30;
  for (int i = 0; i < 6; ++i) {
    const double begin = now_seconds();
    kernels::gemm(context, product);
    best = std::min(best, now_seconds() - begin);
  }
  return 2.0 * n * n * n / best;
}

}  // namespace tessera
