// Codes, scales and products in fp8 for check_fp8.py. All numbers come and go as bytes.
//     fp8_values casts                                              codes of every bf16 in e4m3, then in e5m2
//     fp8_values quantise TYPE SCALING TRANSPOSED ROWS COLUMNS      of x (rows,columns) in bf16: codes, then scales
//     fp8_values delayed TENSOR MARGIN LENGTH STEPS ROWS COLUMNS    of x (rows,columns) in bf16 of each step: codes of Fp8Tensor 0, 1 or 2
//     of a product, and the multiplier that they leave for the next step fp8_values product TYPE SCALING M N K                         y
//     (M,N) in bf16 of a (M,K) and b (N,K) in bf16, a's codes of TYPE, b's e4m3
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/fp8_history/fp8_history.hpp"
#include "kernels/gemm/gemm.hpp"

namespace {

using namespace tessera;
using namespace tessera::kernels;

std::vector<bf16> matrix(std::int64_t n) {
  std::vector<bf16> x(static_cast<std::size_t>(n));
  if (std::fread(x.data(), sizeof(bf16), x.size(), stdin) != x.size()) std::exit(1);
  return x;
}
template <class T>
void put(const std::vector<T>& x) {
  std::fwrite(x.data(), sizeof(T), x.size(), stdout);
}

struct Codes {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};
Codes codes_of(const std::vector<bf16>& x, DType type, Fp8Scaling scaling, bool transposed, std::int64_t rows, std::int64_t columns) {
  const std::int64_t scales = fp8_scales(scaling, transposed ? columns : rows, transposed ? rows : columns);
  Codes made{std::vector<std::uint8_t>(x.size()), std::vector<float>(static_cast<std::size_t>(scales))};
  host::fp8_quantize({}, {.codes = made.codes.data(),
                          .scales = made.scales.data(),
                          .x = x.data(),
                          .rows = rows,
                          .columns = columns,
                          .transposed = transposed,
                          .dtype = DType::bf16,
                          .type = type,
                          .scaling = scaling});
  return made;
}

template <class T>
std::vector<std::uint8_t> casts() {
  std::vector<std::uint8_t> codes;
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    bf16 b;
    b.bits = static_cast<std::uint16_t>(bits);
    codes.push_back(T(static_cast<float>(b)).bits);
  }
  return codes;
}

void delayed(std::int64_t tensor, int margin, std::int64_t length, std::int64_t steps, std::int64_t rows, std::int64_t columns) {
  std::vector<float> history(static_cast<std::size_t>(fp8_tensors * length)), multipliers(fp8_tensors, 1.f), largest(fp8_tensors);
  const DType type = tensor == static_cast<std::int64_t>(Fp8Tensor::gradient) ? DType::e5m2 : DType::e4m3;
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::vector<bf16> x = matrix(rows * columns);
    std::vector<std::uint8_t> codes(x.size());
    float scale = 0;
    host::fp8_quantize({}, {.codes = codes.data(),
                            .scales = &scale,
                            .x = x.data(),
                            .rows = rows,
                            .columns = columns,
                            .dtype = DType::bf16,
                            .type = type,
                            .scaling = Fp8Scaling::tensor,
                            .delayed = {multipliers.data() + tensor, largest.data() + tensor}});
    host::fp8_histories({}, {.history = history.data(),
                             .multipliers = multipliers.data(),
                             .largest = largest.data(),
                             .matrices = 1,
                             .length = length,
                             .margin = margin});
    put(codes), put(std::vector<float>{multipliers[static_cast<std::size_t>(tensor)]});
  }
}

}  // namespace

int main(int, char** arguments) {
  const std::string what = arguments[1];
  if (what == "casts") {
    put(casts<e4m3>()), put(casts<e5m2>());
    return 0;
  }
  const auto number = [&](int i) { return std::atol(arguments[i]); };
  if (what == "delayed") {
    delayed(number(2), static_cast<int>(number(3)), number(4), number(5), number(6), number(7));
    return 0;
  }
  const DType type = std::string(arguments[2]) == "e5m2" ? DType::e5m2 : DType::e4m3;
  const auto scaling = static_cast<Fp8Scaling>(number(3));
  if (what == "quantise") {
    const Codes made = codes_of(matrix(number(5) * number(6)), type, scaling, number(4) != 0, number(5), number(6));
    put(made.codes), put(made.scales);
    return 0;
  }
  const std::int64_t M = number(4), N = number(5), K = number(6);
  const Codes a = codes_of(matrix(M * K), type, scaling, false, M, K), b = codes_of(matrix(N * K), DType::e4m3, scaling, false, N, K);
  std::vector<bf16> y(static_cast<std::size_t>(M * N));
  const Gemm g{.c = y.data(),
               .a = a.codes.data(),
               .b = b.codes.data(),
               .M = M,
               .N = N,
               .K = K,
               .b_transposed = true,
               .in = DType::bf16,
               .out = DType::bf16,
               .fp8 = Gemm::Fp8{{type, scaling, a.scales.data()}, {DType::e4m3, scaling, b.scales.data()}}};
  std::vector<std::byte> bytes(host::gemm_workspace_bytes(g) + 64);
  auto* aligned = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(bytes.data()) + 63) / 64 * 64);
  host::gemm({.workspace = {aligned, bytes.size() - 64}}, g);
  put(y);
}
