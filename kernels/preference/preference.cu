// A thread for each pair, row or sequence, in few blocks: bound by the launch. Totals are int64, so the order of their atomics does not
// matter. Not yet measured.
#include <array>
#include <bit>

#include "kernels/cuda/device.hpp"
#include "kernels/preference/preference_code.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

constexpr int pair_threads = 64, row_threads = 256;

/// Adds all int64 of `from` to those of `to`.
template <class Sums>
__device__ void add_whole(Sums* to, const Sums& from) {
  constexpr std::size_t n = sizeof(Sums) / sizeof(std::int64_t);
  static_assert(sizeof(unsigned long long) == sizeof(std::int64_t));
  auto* words = reinterpret_cast<unsigned long long*>(to);
  const auto values = std::bit_cast<std::array<unsigned long long, n>>(from);
#pragma unroll
  for (std::size_t i = 0; i < n; ++i)
    if (values[i] != 0) atomicAdd(words + i, values[i]);
}

__device__ std::int64_t own_index() { return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

__global__ void __launch_bounds__(pair_threads) pair_kernel(PreferenceCoefficients p) {
  const std::int64_t k = own_index();
  if (k >= p.S / 2) return;
  preference::Added added;
  preference::OfPair(p, k, added).run();
  if (p.loss) add_whole(p.loss, added.loss);
  if (p.totals) add_whole(p.totals, added.totals);
  if (!added.finite) *p.not_finite = 1;  // all write the same value
}

__global__ void __launch_bounds__(row_threads) row_weights_kernel(PreferenceRowWeights p) {
  const std::int64_t row = own_index();
  if (row < p.M) p.weights[row] = preference::row_weight(p, row);
}

__global__ void __launch_bounds__(pair_threads) log_probabilities_kernel(SequenceLogProbabilities p) {
  const std::int64_t i = own_index();
  if (i < p.S && !preference::log_probability(p, i)) *p.not_finite = 1;
}

__global__ void __launch_bounds__(pair_threads) kl_kernel(AddKl p) {
  const std::int64_t i = own_index();
  if (i >= p.S) return;
  KlEstimate own;
  if (!preference::add_kl(p, i, own)) *p.not_finite = 1;
  add_whole(p.kl, own);
}

/// A thread for each of n.
template <class Arguments>
void over(const Context& context, std::int64_t n, int threads, void (*kernel)(Arguments), const Arguments& p) {
  if (n > 0) launch(stream_of(context), static_cast<unsigned>(ceil_div(n, std::int64_t{threads})), threads, 0, kernel, p);
}

}  // namespace

void preference_coefficients(const Context& context, const PreferenceCoefficients& p) {
  TESSERA_CUDA_REQUIRE(p.S >= 0 && p.S % 2 == 0);
  over(context, p.S / 2, pair_threads, pair_kernel, p);
}
void preference_row_weights(const Context& context, const PreferenceRowWeights& p) {
  over(context, p.M, row_threads, row_weights_kernel, p);
}
void sequence_log_probabilities(const Context& context, const SequenceLogProbabilities& p) {
  over(context, p.S, pair_threads, log_probabilities_kernel, p);
}
void add_kl(const Context& context, const AddKl& p) { over(context, p.S, pair_threads, kl_kernel, p); }

}  // namespace tessera::kernels::cuda
