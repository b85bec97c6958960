// Activations without a gate on matrices drawn by a seed.
#pragma once
#include <ostream>

#include "kernels/activation/activation.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct ActivationCase {
  std::int64_t M, F;
};
/// One value, whole vectors and a remainder, and elements of several blocks.
inline const ActivationCase activation_cases[] = {{1, 1}, {1, 48}, {3, 1013}, {77, 64}, {5, 15}, {5, 2056}, {300, 129}, {65, 4099}};
inline std::ostream& operator<<(std::ostream& out, const ActivationCase& c) { return out << "M " << c.M << ", F " << c.F; }

inline constexpr PlainActivation plain_activations[] = {PlainActivation::gelu, PlainActivation::gelu_tanh, PlainActivation::relu_squared,
                                                        PlainActivation::xielu};
inline const char* name_of_plain(PlainActivation activation) {
  constexpr const char* names[] = {"gelu", "gelu_tanh", "relu_squared", "xielu"};
  return names[static_cast<int>(activation)];
}

template <class T>
struct ActivationInputs {
  ActivationCase c;
  PlainActivation activation;
  std::vector<T> x, d_out, alphas = {T(0.2f), T(-1.05f)};
  std::vector<float> d_alphas = {0.75f, -2.5f};  ///< what is there before
  ActivationInputs(const ActivationCase& c, PlainActivation activation)
      : c(c), activation(activation), x(random_values<T>(c.M * c.F, 1, 3.0f)), d_out(random_values<T>(c.M * c.F, 2)) {}
  bool xielu() const { return activation == PlainActivation::xielu; }
  /// Without results.
  ActivationForward forward_arguments() const {
    return {
        .x = x.data(), .alphas = xielu() ? alphas.data() : nullptr, .M = c.M, .F = c.F, .dtype = dtype_of<T>(), .activation = activation};
  }
  ActivationBackward backward_arguments() const {
    return {.d_out = d_out.data(),
            .x = x.data(),
            .alphas = xielu() ? alphas.data() : nullptr,
            .M = c.M,
            .F = c.F,
            .dtype = dtype_of<T>(),
            .activation = activation};
  }
};

}  // namespace tessera::kernels::testing
