// Rows of experts, some of whom have none, and rows behind them that are nobody's.
#pragma once
#include <numeric>
#include <ostream>
#include <random>

#include "kernels/expert_bias/expert_bias.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct ExpertBiasCase {
  std::vector<std::int32_t> counts;  ///< rows of each expert
  std::int64_t N, nobodys = 0, k = 2;
  std::int64_t E() const { return static_cast<std::int64_t>(counts.size()); }
  std::int64_t owned() const { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); }
  std::int64_t rows() const { return owned() + nobodys; }
  std::int64_t M() const { return ceil_div(rows(), k) + 3; }
  std::int64_t slots() const { return k + 1; }
};
/// One row; none at all; several pieces of columns and of rows; more experts than a warp has lanes; whole vectors and remainders.
inline const ExpertBiasCase expert_bias_cases[] = {{{1}, 1},
                                                   {{0, 0}, 5, 3},
                                                   {{0, 1, 77, 0, 300, 2, 0}, 48, 5, 4},
                                                   {{130, 0, 1, 33}, 613, 2},
                                                   {{5, 128, 3}, 1040, 9, 1},
                                                   {std::vector<std::int32_t>(40, 3), 33, 1, 3},
                                                   {{2, 2300, 0, 64}, 7, 40}};
inline std::ostream& operator<<(std::ostream& out, const ExpertBiasCase& c) {
  return out << c.E() << " experts, " << c.rows() << " rows of " << c.N << ", " << c.nobodys << " nobody's";
}

/// Gradients of nobody's rows are NaN.
template <class T>
struct ExpertBiasInputs {
  ExpertBiasCase c;
  std::vector<std::int32_t> offsets{0}, sources;
  std::vector<T> y, bias, d_y;
  std::vector<float> weights, d_bias, d_weights;

  explicit ExpertBiasInputs(const ExpertBiasCase& c)
      : c(c),
        y(random_values<T>(c.rows() * c.N, 1)),
        bias(random_values<T>(c.E() * c.N, 2)),
        d_y(random_values<T>(c.rows() * c.N, 3)),
        weights(random_values<float>(c.M() * c.slots(), 4)),
        d_bias(random_values<float>(c.E() * c.N, 5)),
        d_weights(random_values<float>(c.M() * c.slots(), 6)) {
    for (const std::int32_t count : c.counts) offsets.push_back(offsets.back() + count);
    const auto nobodys = poisoned<T>(c.nobodys * c.N);
    std::copy(nobodys.begin(), nobodys.end(), d_y.begin() + c.owned() * c.N);
    sources.resize(static_cast<std::size_t>(c.M() * c.k));
    std::iota(sources.begin(), sources.end(), 0);
    std::shuffle(sources.begin(), sources.end(), std::mt19937(7 + test_seed()));
    sources.resize(static_cast<std::size_t>(c.rows()));
    std::fill(sources.begin() + c.owned(), sources.end(), -1);
  }
};

/// What the ops make of operands, which lie on the host or on a GPU: of in.y, in.d_bias and in.d_weights, and of two poisoned d_bias.
template <class In, class Floats>
void run_expert_bias(const Context& context, const ExpertBiasCase& c, DType dtype, In& in, Floats& written, Floats& unweighed) {
  add_expert_bias(
      context,
      {.y = in.y.data(), .bias = in.bias.data(), .offsets = in.offsets.data(), .rows = c.rows(), .E = c.E(), .N = c.N, .dtype = dtype});
  ExpertBiasGradient gradient{.d_bias = in.d_bias.data(),
                              .d_y = in.d_y.data(),
                              .weights = in.weights.data(),
                              .sources = in.sources.data(),
                              .offsets = in.offsets.data(),
                              .k = c.k,
                              .slots = c.slots(),
                              .rows = c.rows(),
                              .E = c.E(),
                              .N = c.N,
                              .accumulate = true,
                              .dtype = dtype};
  expert_bias_gradient(context, gradient);
  gradient.d_bias = written.data(), gradient.accumulate = false;
  expert_bias_gradient(context, gradient);
  gradient.d_bias = unweighed.data(), gradient.weights = nullptr, gradient.sources = nullptr;
  expert_bias_gradient(context, gradient);
  weigh_expert_bias(context, {.d_weights = in.d_weights.data(),
                              .d_y = in.d_y.data(),
                              .bias = in.bias.data(),
                              .sources = in.sources.data(),
                              .offsets = in.offsets.data(),
                              .k = c.k,
                              .slots = c.slots(),
                              .rows = c.rows(),
                              .E = c.E(),
                              .N = c.N,
                              .dtype = dtype});
}

template <class T>
struct ExpertBiasResults {
  std::vector<T> y;
  std::vector<float> d_bias, written, unweighed, d_weights;
};
template <class T>
ExpertBiasResults<T> expert_bias_on_host(const ExpertBiasCase& c) {
  ExpertBiasInputs<T> in(c);
  auto written = poisoned<float>(c.E() * c.N), unweighed = written;
  run_expert_bias({}, c, dtype_of<T>(), in, written, unweighed);
  return {in.y, in.d_bias, written, unweighed, in.d_weights};
}
template <class T>
Hash128 digest(const ExpertBiasResults<T>& r) {
  return digest(r.y, r.d_bias, r.written, r.unweighed, r.d_weights);
}

}  // namespace tessera::kernels::testing
