// Sinks beside what attention gave, drawn by a seed.
#pragma once
#include <ostream>

#include "kernels/attention_sinks/attention_sinks.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct SinksCase {
  std::int64_t B, T, H, D;
  std::int64_t tokens() const { return B * T; }
  std::int64_t terms() const { return B * T * H; }
  std::int64_t elements() const { return terms() * D; }
};
/// Heads of less than a vector to more than a warp has, that are no whole vectors; more heads than a block has and heads that do not
/// divide; several blocks of tokens, whose ends lie inside sequences.
inline const SinksCase sinks_cases[] = {{1, 1, 1, 1},   {2, 3, 2, 6},   {1, 77, 7, 64}, {2, 37, 5, 90},  {3, 50, 17, 16}, {1, 130, 4, 128},
                                        {2, 33, 2, 96}, {1, 9, 3, 256}, {1, 5, 2, 520}, {1, 40, 40, 64}, {1, 6, 300, 8},  {2, 200, 2, 48}};
inline std::ostream& operator<<(std::ostream& out, const SinksCase& c) {
  return out << "B " << c.B << ", T " << c.T << ", H " << c.H << ", D " << c.D;
}

template <class T>
struct SinksInputs {
  SinksCase c;
  std::vector<T> out, sinks, d_out;
  std::vector<float> lse, d_sinks;  ///< d_sinks: what is there before
  explicit SinksInputs(const SinksCase& c)
      : c(c),
        out(random_values<T>(c.elements(), 1)),
        sinks(random_values<T>(c.H, 2, 3.0f)),
        d_out(random_values<T>(c.elements(), 3)),
        lse(random_values<float>(c.terms(), 4, 3.0f)),
        d_sinks(random_values<float>(c.H, 5)) {}
  /// Without what is computed in place.
  AttentionSinksForward forward_arguments() const {
    return {.sinks = sinks.data(), .B = c.B, .T = c.T, .H = c.H, .D = c.D, .dtype = dtype_of<T>()};
  }
  /// Of out and lse as the forward pass has left them.
  AttentionSinksBackward backward_arguments() const {
    return {.d_out = d_out.data(),
            .out = out.data(),
            .lse = lse.data(),
            .sinks = sinks.data(),
            .B = c.B,
            .T = c.T,
            .H = c.H,
            .D = c.D,
            .dtype = dtype_of<T>()};
  }
};

}  // namespace tessera::kernels::testing
