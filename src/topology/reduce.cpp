#include "topology/reduce.hpp"

#include <algorithm>
#include <array>

#include "base/check.hpp"

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

template <Reduction reduction, class T>
void reduce_block(T* out, const void* const* sources, int source_count, std::int64_t at, std::int64_t n, bool accumulate) {
  std::array<Sum<T>, block> sum;
  const T* first = static_cast<const T*>(sources[0]) + at;
  for (std::int64_t i = 0; i < n; ++i) sum[static_cast<std::size_t>(i)] = wide(first[i]);
  for (int s = 1; s < source_count; ++s) {
    const T* source = static_cast<const T*>(sources[s]) + at;
    for (std::int64_t i = 0; i < n; ++i) {
      auto& partial = sum[static_cast<std::size_t>(i)];
      partial = combine<reduction>(partial, wide(source[i]));
    }
  }
  T* to = out + at;
  if (accumulate) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(combine<reduction>(sum[static_cast<std::size_t>(i)], wide(to[i])));
  } else {
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(sum[static_cast<std::size_t>(i)]);
  }
}

template <class T>
void reduce_all(void* out, const void* const* sources, int source_count, std::int64_t count, Reduction reduction, bool accumulate) {
  for (std::int64_t at = 0; at < count; at += block) {
    std::int64_t n = std::min(block, count - at);
    if (reduction == Reduction::sum)
      reduce_block<Reduction::sum>(static_cast<T*>(out), sources, source_count, at, n, accumulate);
    else
      reduce_block<Reduction::max>(static_cast<T*>(out), sources, source_count, at, n, accumulate);
  }
}

}  // namespace

void require_reducible(DType dtype) {
  TESSERA_REQUIRE(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::i64, "no reduction of {}", name_of(dtype));
}

void reduce_in_order(void* out, const void* const* sources, int source_count, std::int64_t count, DType dtype, Reduction reduction,
                     bool accumulate) {
  require_reducible(dtype);
  if (dtype == DType::f32)
    reduce_all<float>(out, sources, source_count, count, reduction, accumulate);
  else if (dtype == DType::bf16)
    reduce_all<bf16>(out, sources, source_count, count, reduction, accumulate);
  else
    reduce_all<std::int64_t>(out, sources, source_count, count, reduction, accumulate);
}

}  // namespace tessera
