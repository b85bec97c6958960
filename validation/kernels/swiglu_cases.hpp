// Gated linear units on matrices drawn by a seed.
#pragma once
#include <ostream>

#include "kernels/swiglu/swiglu.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct SwigluCase {
  std::int64_t M, F;
};
/// Rows of one value, of whole vectors and with a remainder; rows that several blocks of threads share.
inline const SwigluCase swiglu_cases[] = {{1, 1},  {1, 48},   {3, 1013}, {77, 1},    {77, 64},
                                          {5, 15}, {5, 2056}, {1, 4096}, {77, 1013}, {300, 129}};
inline std::ostream& operator<<(std::ostream& out, const SwigluCase& c) { return out << "M " << c.M << ", F " << c.F; }

inline constexpr GateActivation gate_activations[] = {GateActivation::silu, GateActivation::gelu_tanh, GateActivation::gelu,
                                                      GateActivation::clamped_silu};
/// Of clamped_silu: not the default, and many values lie beyond it.
inline constexpr float gate_limit = 2.5f;
inline const char* name_of_gate(GateActivation activation) {
  constexpr const char* names[] = {"silu", "gelu_tanh", "gelu", "clamped_silu"};
  return names[static_cast<int>(activation)];
}

template <class T>
struct SwigluInputs {
  SwigluCase c;
  std::vector<T> gate_up, d_out;
  explicit SwigluInputs(const SwigluCase& c)
      : c(c), gate_up(random_values<T>(2 * c.M * c.F, 1, 3.0f)), d_out(random_values<T>(c.M * c.F, 2)) {}
};

}  // namespace tessera::kernels::testing
