// Tokens that choose experts: how many, how much room there is, and in how many blocks of rows.
#pragma once
#include <ostream>
#include <random>

#include "kernels/dispatch/dispatch.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct DispatchCase {
  std::int64_t M, k, E, capacity, C, blocks = 1;
  /// That gives experts this capacity where no token is padding.
  double factor() const {
    return capacity == M ? 0 : (static_cast<double>(capacity) - 0.5) * static_cast<double>(E) / static_cast<double>(M * k);
  }
  /// Two more than a block can need.
  std::int64_t rows_of_block() const { return std::min(M * std::min(k, E / blocks), E / blocks * capacity) + 2; }
  std::int64_t rows() const { return blocks * rows_of_block(); }
};
/// Dropless, with room for all; room for some; more experts than choices; more tokens than a block of threads has; in blocks.
inline const DispatchCase dispatch_cases[] = {{1, 1, 1, 1, 1},         {77, 2, 8, 77, 48},      {77, 2, 8, 15, 33},   {5, 3, 40, 5, 130},
                                              {5, 3, 300, 5, 130},     {300, 4, 6, 100, 17},    {700, 4, 6, 300, 16}, {77, 2, 8, 77, 48, 4},
                                              {700, 4, 6, 300, 16, 2}, {5, 3, 300, 5, 130, 100}};
inline std::ostream& operator<<(std::ostream& out, const DispatchCase& c) {
  return out << c.M << " tokens, " << c.E << " experts of " << c.capacity << " in " << c.blocks << " blocks";
}

/// Of each token other experts; the first expert is chosen more than others.
inline std::vector<std::int32_t> random_choices(const DispatchCase& c) {
  std::mt19937 engine(5 + test_seed());
  std::vector<std::int32_t> experts;
  for (std::int64_t m = 0; m < c.M; ++m) {
    const auto first = static_cast<std::int64_t>(engine() % 3 ? engine() % static_cast<unsigned>(c.E) : 0);
    for (std::int64_t j = 0; j < c.k; ++j) experts.push_back(static_cast<std::int32_t>((first + j) % c.E));
  }
  return experts;
}

/// The same choices with padding in some places.
struct PaddedChoices {
  std::vector<std::int64_t> real;     ///< tokens that are no padding
  std::vector<std::int32_t> experts;  ///< choices of all
};
inline PaddedChoices padded_choices(const DispatchCase& c) {
  PaddedChoices padded{{}, random_choices(c)};
  for (std::int64_t m = 0; m < c.M; ++m) {
    if (m % 5 != 3 && m < c.M - c.M / 4) {
      padded.real.push_back(m);
      continue;
    }
    for (std::int64_t j = 0; j < c.k; ++j) padded.experts[static_cast<std::size_t>(m * c.k + j)] = static_cast<std::int32_t>(c.E);
  }
  return padded;
}

}  // namespace tessera::kernels::testing
