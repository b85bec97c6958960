// The plan sorts choices as the embedding's backward pass sorts tokens, then looks up where each expert's begin. All else is bound by
// memory: each element of a row is read once and written once. Not yet measured.
#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/rows.hpp"
#include "kernels/dispatch/dispatch.hpp"
#include "kernels/dispatch/slots.hpp"
#include "kernels/embedding/sort.hpp"
#include "kernels/embedding/sort_sizes.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

constexpr int row_threads = 128;

/// The first place of an expert (or of a later one) among sorted choices.
__device__ std::int32_t first_place(const std::int32_t* sorted, std::int32_t choices, std::int32_t expert) {
  std::int32_t low = 0, high = choices;
  while (low < high) {
    const std::int32_t middle = low + (high - low) / 2;
    if (sorted[middle] < expert)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/// One block. `begins` (E): where each expert's choices begin among the sorted ones.
__global__ void __launch_bounds__(block_threads) offsets_kernel(PlanDispatch p, const std::int32_t* sorted, std::int32_t* begins) {
  const auto choices = static_cast<std::int32_t>(p.M * p.k);
  for (auto e = static_cast<std::int32_t>(threadIdx.x); e < p.E; e += block_threads) {
    begins[e] = first_place(sorted, choices, e);
    p.counts[e] = first_place(sorted, choices, e + 1) - begins[e];
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const std::int64_t real = first_place(sorted, choices, static_cast<std::int32_t>(p.E));
  const auto capacity = static_cast<std::int32_t>(expert_capacity(p.capacity_factor, real / p.k, p.k, p.E));
  p.offsets[0] = 0;
  for (std::int64_t e = 0; e < p.E; ++e) p.offsets[e + 1] = p.offsets[e] + (p.counts[e] < capacity ? p.counts[e] : capacity);
}

/// A thread a sorted choice, and a row, which may be nobody's.
__global__ void __launch_bounds__(block_threads) place_kernel(PlanDispatch p, SortedTokens sorted, const std::int32_t* begins) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x;
  if (i < p.rows && is_empty(p, i)) p.sources[i] = -1;
  if (i >= p.M * p.k) return;
  const std::int32_t e = sorted.tokens[i], choice = sorted.order[i];
  const std::int32_t number = e < p.E ? static_cast<std::int32_t>(i) - begins[e] : 0;
  const bool taken = e < p.E && number < p.offsets[e + 1] - p.offsets[e];
  const std::int32_t row = taken ? static_cast<std::int32_t>(first_row(p, e)) + number : -1;
  p.places[choice] = row;
  if (row >= 0) p.sources[row] = choice;
}

template <class T, class Whole>
__global__ void __launch_bounds__(block_threads) gather_kernel(GatherRows p, RowVectors vectors) {
  constexpr int N = vector_elements<T>;
  const auto [row, vector] = vectors.place();
  if (row >= vectors.rows) return;
  const std::int64_t i = static_cast<std::int64_t>(vector) * N;
  const std::int64_t choice = p.sources[row];
  Vector<T, N> v{};
  if (choice >= 0) v = load<Whole, N>(static_cast<const T*>(p.in) + choice / p.k * p.C, i, p.C);
  store<Whole, N>(static_cast<T*>(p.out) + row * p.C, i, p.C, v);
}

template <class Whole, int N, class T>
__device__ void add_row(float (&sum)[N], const T* row, std::int64_t i, std::int64_t C, float weight) {
  float x[N];
  load<Whole>(x, row, i, C);
#pragma unroll
  for (int n = 0; n < N; ++n) sum[n] += x[n] * weight;
}

template <class T, class Whole>
__global__ void __launch_bounds__(block_threads) combine_kernel(CombineRows p, RowVectors vectors) {
  constexpr int N = vector_elements<T>;
  const auto [m, vector] = vectors.place();
  if (m >= vectors.rows) return;
  const bool weighs_shared = p.shared && p.weighs_shared;
  const std::int64_t i = static_cast<std::int64_t>(vector) * N, slots = p.k + (weighs_shared ? 1 : 0);
  const float* weights = p.weights ? p.weights + m * slots : nullptr;
  float sum[N] = {};
  for (std::int64_t j = 0; j < p.k; ++j) {
    const std::int64_t row = p.places[m * p.k + j];
    if (row >= 0) add_row<Whole>(sum, static_cast<const T*>(p.rows) + row * p.C, i, p.C, weights ? weights[j] : 1.0f);
  }
  if (p.shared) add_row<Whole>(sum, static_cast<const T*>(p.shared) + m * p.C, i, p.C, weights && weighs_shared ? weights[p.k] : 1.0f);
  if (p.addend) add_row<Whole>(sum, static_cast<const T*>(p.addend) + m * p.C, i, p.C, 1.0f);
  store<Whole>(static_cast<T*>(p.out) + m * p.C, i, p.C, sum);
}

/// A block a row.
template <class T, class Whole>
__global__ void __launch_bounds__(row_threads) weigh_kernel(WeighRows p) {
  constexpr int N = vector_elements<T>;
  const std::int64_t row = blockIdx.x, slot = slot_of(p, row);
  if (slot < 0) return;
  T *d = static_cast<T*>(p.d) + row * p.F, *a = static_cast<T*>(p.a) + row * p.F;
  const float weight = p.weights[slot];
  float sum = 0;
  for (std::int64_t i = static_cast<std::int64_t>(threadIdx.x) * N; i < p.F; i += row_threads * N) {
    float x[N], y[N];
    load<Whole>(x, a, i, p.F), load<Whole>(y, d, i, p.F);
#pragma unroll
    for (int n = 0; n < N; ++n) sum = fmaf(x[n], y[n], sum), x[n] *= weight, y[n] *= weight;
    store<Whole>(a, i, p.F, x), store<Whole>(d, i, p.F, y);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) p.d_weights[slot] = sum;
}

}  // namespace

void plan_dispatch(const Context& context, const PlanDispatch& p) {
  const std::int64_t choices = p.M * p.k;
  TESSERA_CUDA_REQUIRE(choices > 0 && p.E > 0 && p.E % p.blocks == 0 && p.rows % p.blocks == 0 && p.rows / p.blocks >= p.rows_of_a_block());
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::plan_dispatch_workspace_bytes(p));
  const SortedTokens sorted = sort_tokens(stream_of(context), context.workspace.data(), {p.experts, choices, p.E + 1});
  auto* begins = reinterpret_cast<std::int32_t*>(context.workspace.data() + sort_sizes::bytes(choices));
  launch(stream_of(context), 1, block_threads, 0, offsets_kernel, p, sorted.tokens, begins);
  launch(stream_of(context), static_cast<unsigned>(ceil_div(std::max(choices, p.rows), block_threads)), block_threads, 0, place_kernel, p,
         sorted, static_cast<const std::int32_t*>(begins));
}

void gather_rows(const Context& context, const GatherRows& p) {
  if (p.rows == 0 || p.C == 0) return;
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = vector_elements<T>;
    const RowVectors vectors(p.rows, p.C, N);
    with_whole(on_sixteen_bytes(p.out, p.in) && whole_vectors(N, {p.C}), [&](auto whole) {
      launch(stream_of(context), vectors.blocks(), block_threads, 0, gather_kernel<T, decltype(whole)>, p, vectors);
    });
  });
}

void combine_rows(const Context& context, const CombineRows& p) {
  if (p.M == 0 || p.C == 0) return;
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = vector_elements<T>;
    const RowVectors vectors(p.M, p.C, N);
    with_whole(on_sixteen_bytes(p.out, p.rows, p.shared, p.addend) && whole_vectors(N, {p.C}), [&](auto whole) {
      launch(stream_of(context), vectors.blocks(), block_threads, 0, combine_kernel<T, decltype(whole)>, p, vectors);
    });
  });
}

void weigh_rows(const Context& context, const WeighRows& p) {
  if (p.rows == 0 || p.F == 0) return;
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    with_whole(on_sixteen_bytes(p.d, p.a) && whole_vectors(vector_elements<T>, {p.F}), [&](auto whole) {
      launch(stream_of(context), static_cast<unsigned>(p.rows), row_threads, 0, weigh_kernel<T, decltype(whole)>, p);
    });
  });
}

}  // namespace tessera::kernels::cuda
