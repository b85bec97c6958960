// A unit's elements as they travel: matrices as codes, others as they are, gaps between them.
#pragma once
#include "kernels/fp8_runs/fp8_runs.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

inline constexpr std::int64_t elements_of_runs = 40'000;
inline constexpr float run_multiplier = 151.3f;

/// One after the other in bytes, with gaps between elements: of a few, of less and of more than rows of 128.
inline std::vector<Fp8Run> some_runs() {
  std::vector<Fp8Run> runs;
  std::int64_t byte = 0, element = 0;
  for (const auto& [elements, coded] : {std::pair<std::int64_t, bool>{1, true},
                                        {3, false},
                                        {127, true},
                                        {128, true},
                                        {4097, false},
                                        {20'001, true},
                                        {900, false},
                                        {5000, true}}) {
    runs.push_back({element, elements, byte, coded});
    byte += run_bytes(elements, coded), element += round_up(elements + 1, 8);
  }
  return runs;
}
inline std::int64_t bytes_of_runs() {
  const Fp8Run last = some_runs().back();
  return last.byte + run_bytes(last.elements, last.coded);
}
/// Some of them saturate, some are subnormal codes.
inline std::vector<bf16> values_of_runs() {
  auto x = random_values<bf16>(elements_of_runs, 11);
  for (std::size_t i = 0; i < x.size(); i += 3) x[i] = bf16(std::ldexp(static_cast<float>(x[i]), static_cast<int>(i % 17) - 14));
  return x;
}

}  // namespace tessera::kernels::testing
