#include "topology/communicators/reduce.hpp"

#include <algorithm>
#include <array>

#include "base/check.hpp"
#include "topology/communicators/copy.hpp"

namespace tessera {
namespace {

constexpr std::int64_t block = 512;  // elements: a block of partial sums stays in the first-level cache

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, bf16>, float, T>;

template <class T>
Sum<T> wide(T value) {
  return static_cast<Sum<T>>(value);
}

template <Reduction reduction, class T>
T combine(T a, T b) {
  if constexpr (reduction == Reduction::sum && std::is_integral_v<T>) {
    // Fixed point wraps like MPI's and NCCL's integer sums; overflow is found by its owner.
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else if constexpr (reduction == Reduction::sum) {
    return a + b;
  } else {
    return a > b || a != a ? a : b;
  }
}

/// terms[i] = the reduction of element at + i over the sources, in their order.
template <Reduction reduction, class T>
void reduce_terms(Sum<T>* __restrict terms, const void* const* sources, int source_count, std::int64_t at, std::int64_t n) {
  const T* first = static_cast<const T*>(sources[0]) + at;
  if (source_count == 1) {
    for (std::int64_t i = 0; i < n; ++i) terms[i] = wide(first[i]);
    return;
  }
  const T* second = static_cast<const T*>(sources[1]) + at;
  for (std::int64_t i = 0; i < n; ++i) terms[i] = combine<reduction>(wide(first[i]), wide(second[i]));
  for (int s = 2; s < source_count; ++s) {
    const T* source = static_cast<const T*>(sources[s]) + at;
    for (std::int64_t i = 0; i < n; ++i) terms[i] = combine<reduction>(terms[i], wide(source[i]));
  }
}

template <Reduction reduction, class T>
void reduce_all(T* out, const void* const* sources, int source_count, std::int64_t count, bool accumulate) {
  alignas(64) std::array<Sum<T>, block> terms;
  alignas(64) std::array<T, block> rounded;
  // What is not read first is better not fetched at all.
  bool stream = !accumulate && static_cast<std::size_t>(count) * sizeof(T) >= stream_minimum;
  for (std::int64_t at = 0; at < count; at += block) {
    std::int64_t n = std::min(block, count - at);
    reduce_terms<reduction, T>(terms.data(), sources, source_count, at, n);
    if (accumulate) {
      for (std::int64_t i = 0; i < n; ++i) {
        auto& term = terms[static_cast<std::size_t>(i)];
        term = combine<reduction>(term, wide(out[at + i]));
      }
    }
    T* to = stream ? rounded.data() : out + at;
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(terms[static_cast<std::size_t>(i)]);
    if (stream) stream_piece(out + at, to, static_cast<std::size_t>(n) * sizeof(T));
  }
  if (stream) streams_done();
}

template <class T>
void reduce_typed(void* out, const void* const* sources, int source_count, std::int64_t count, Reduction reduction, bool accumulate) {
  if (reduction == Reduction::sum)
    reduce_all<Reduction::sum>(static_cast<T*>(out), sources, source_count, count, accumulate);
  else
    reduce_all<Reduction::max>(static_cast<T*>(out), sources, source_count, count, accumulate);
}

}  // namespace

void require_reducible(DType dtype) {
  TESSERA_REQUIRE(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::i64, "no reduction of {}", name_of(dtype));
}

void reduce_in_order(void* out, const void* const* sources, int source_count, std::int64_t count, DType dtype, Reduction reduction,
                     bool accumulate) {
  require_reducible(dtype);
  if (dtype == DType::f32)
    reduce_typed<float>(out, sources, source_count, count, reduction, accumulate);
  else if (dtype == DType::bf16)
    reduce_typed<bf16>(out, sources, source_count, count, reduction, accumulate);
  else
    reduce_typed<std::int64_t>(out, sources, source_count, count, reduction, accumulate);
}

}  // namespace tessera
