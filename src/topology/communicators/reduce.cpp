#include "topology/communicators/reduce.hpp"

#include <algorithm>
#include <array>

#include "base/check.hpp"
#include "topology/communicators/copy.hpp"

namespace tessera {
namespace {

constexpr std::int64_t block = 512;  // elements: a block of partial sums stays in the first-level cache

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, bf16> || std::is_same_v<T, f16>, float, T>;

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

template <Reduction reduction, class T>
void continue_sums(Sum<T>* sums, const Sum<T>* before, const void* const* sources, int source_count, std::int64_t count) {
  for (std::int64_t at = 0; at < count; at += block) {
    const std::int64_t n = std::min(block, count - at);
    if (!before) {
      reduce_terms<reduction, T>(sums + at, sources, source_count, at, n);
      continue;
    }
    for (int s = 0; s < source_count; ++s) {
      const T* source = static_cast<const T*>(sources[s]) + at;
      const Sum<T>* so_far = (s == 0 ? before : sums) + at;
      for (std::int64_t i = 0; i < n; ++i) sums[at + i] = combine<reduction>(so_far[i], wide(source[i]));
    }
  }
}

template <Reduction reduction, class T>
void round_sums(T* out, const Sum<T>* sums, std::int64_t count, bool accumulate) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(accumulate ? combine<reduction>(sums[i], wide(out[i])) : sums[i]);
}

/// f with an element of the type, and the reduction.
template <class F>
void with_type(DType dtype, Reduction reduction, F f) {
  const auto with_reduction = [&]<class T>(T element) {
    if (reduction == Reduction::sum)
      f.template operator()<Reduction::sum>(element);
    else
      f.template operator()<Reduction::max>(element);
  };
  switch (dtype) {
    case DType::f32:
      return with_reduction(float{});
    case DType::bf16:
      return with_reduction(bf16{});
    case DType::f16:
      return with_reduction(f16{});
    case DType::i64:
      return with_reduction(std::int64_t{});
    case DType::u16:
    case DType::u32:
    case DType::e4m3:
    case DType::e5m2:
      break;
  }
  require_reducible(dtype);
}

}  // namespace

void require_reducible(DType dtype) { TESSERA_REQUIRE(is_float(dtype) || dtype == DType::i64, "no reduction of {}", name_of(dtype)); }

void reduce_in_order(void* out, const void* const* sources, int source_count, std::int64_t count, DType dtype, Reduction reduction,
                     bool accumulate) {
  with_type(dtype, reduction,
            [&]<Reduction kind, class T>(T) { reduce_all<kind>(static_cast<T*>(out), sources, source_count, count, accumulate); });
}

void continue_in_order(void* sums, const void* before, const void* const* sources, int source_count, std::int64_t count, DType dtype,
                       Reduction reduction) {
  with_type(dtype, reduction, [&]<Reduction kind, class T>(T) {
    continue_sums<kind, T>(static_cast<Sum<T>*>(sums), static_cast<const Sum<T>*>(before), sources, source_count, count);
  });
}

void end_in_order(void* out, const void* sums, std::int64_t count, DType dtype, Reduction reduction, bool accumulate) {
  with_type(dtype, reduction, [&]<Reduction kind, class T>(T) {
    round_sums<kind>(static_cast<T*>(out), static_cast<const Sum<T>*>(sums), count, accumulate);
  });
}

}  // namespace tessera
