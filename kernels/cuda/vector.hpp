// What a memory-bound GPU kernel is written in: up to sixteen bytes of each operand a thread and access, with neighbours in neighbouring
// threads. Which thread has which elements depends on shapes alone. Where operands do not lie on sixteen bytes, or rows are no whole
// vectors, another instance of the kernel (`Whole` is false_type) has the same thread take the same elements one by one.
#pragma once
#include <bit>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/sizes.hpp"

namespace tessera::cuda {

/// N neighbouring elements in registers.
template <class T, int N>
struct Vector {
  T value[N];
};

namespace detail {
template <int bytes>
struct Access;
template <>
struct Access<2> {
  using type = unsigned short;
};
template <>
struct Access<4> {
  using type = unsigned;
};
template <>
struct Access<8> {
  using type = uint2;
};
template <>
struct Access<16> {
  using type = uint4;
};
/// N elements of T as accesses of at most sixteen bytes.
template <class T, int N>
struct Accesses {
  static constexpr int bytes = static_cast<int>(N * sizeof(T)), count = bytes <= 16 ? 1 : bytes / 16;
  using Word = typename Access<bytes / count>::type;
  Word word[count];
};

/// To device memory. Where the compiler sees what sixteen bytes are made of, it makes four stores of four bytes of them, each of which
/// touches all the sectors: so the instruction is written out.
template <class Word>
__device__ void put(Word* to, const Word& word) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(Word) == 16) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(word.x), "r"(word.y), "r"(word.z),
                 "r"(word.w)
                 : "memory");
    return;
  }
#endif
  *to = word;
}
}  // namespace detail

/// Elements i .. i + N - 1 of p; those from n on are `beyond`. Whole: p lies on sixteen bytes, and i and n are multiples of N.
template <class Whole, int N, class T>
__device__ Vector<T, N> load(const T* p, std::int64_t i, std::int64_t n, T beyond = T{}) {
  Vector<T, N> v;
#pragma unroll
  for (int k = 0; k < N; ++k) v.value[k] = beyond;
  if constexpr (Whole::value) {
    using Accesses = detail::Accesses<T, N>;
    if (i < n) {
      Accesses a;
#pragma unroll
      for (int k = 0; k < Accesses::count; ++k) a.word[k] = reinterpret_cast<const typename Accesses::Word*>(p + i)[k];
      memcpy(static_cast<void*>(&v), &a, sizeof v);
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (i + k < n) v.value[k] = p[i + k];
    }
  }
  return v;
}
/// p is device memory, as all operands are: not shared memory.
template <class Whole, int N, class T>
__device__ void store(T* p, std::int64_t i, std::int64_t n, const Vector<T, N>& v) {
  if constexpr (Whole::value) {
    using Accesses = detail::Accesses<T, N>;
    Accesses a;
    memcpy(&a, &v, sizeof v);
    if (i < n) {
#pragma unroll
      for (int k = 0; k < Accesses::count; ++k) detail::put(reinterpret_cast<typename Accesses::Word*>(p + i) + k, a.word[k]);
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (i + k < n) p[i + k] = v.value[k];
    }
  }
}

/// The same into shared memory, with whole vectors.
template <int N, class T>
__device__ void store_shared(T* p, std::int64_t i, std::int64_t n, const Vector<T, N>& v) {
  using Accesses = detail::Accesses<T, N>;
  Accesses a;
  memcpy(&a, &v, sizeof v);
  if (i < n) *reinterpret_cast<Accesses*>(p + i) = a;
}

/// Has the compiler keep v as it lies in memory. Where a value is converted on both sides of a barrier, it would keep the converted floats
/// in place of the packed words, twice the registers.
template <class T, int N>
__device__ void keep_packed(Vector<T, N>& v) {
#ifdef __CUDA_ARCH__
  static_assert(N * sizeof(T) % 4 == 0);
  unsigned word[N * sizeof(T) / 4];
  memcpy(word, &v, sizeof v);
#pragma unroll
  for (unsigned& w : word) asm volatile("" : "+r"(w));
  memcpy(&v, word, sizeof v);
#else
  static_cast<void>(v);
#endif
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

__device__ inline float to_float(f16 x) { return __half2float(__ushort_as_half(x.bits)); }

template <class T, int N>
struct Converter;
template <int N>
struct Converter<float, N> {
  __device__ static Vector<float, N> of(const float (&x)[N]) {
    Vector<float, N> v;
#pragma unroll
    for (int k = 0; k < N; ++k) v.value[k] = x[k];
    return v;
  }
};
template <int N>
struct Converter<bf16, N> {
  __device__ static Vector<bf16, N> of(const float (&x)[N]) {
    Vector<bf16, N> v;
    if constexpr (N == 1) {
      v.value[0].bits = __nv_bfloat16_raw(__float2bfloat16_rn(x[0])).x;
    } else {
#pragma unroll
      for (int k = 0; k < N; k += 2) {  // one instruction a pair
        const __nv_bfloat162_raw pair = __floats2bfloat162_rn(x[k], x[k + 1]);
        v.value[k].bits = pair.x, v.value[k + 1].bits = pair.y;
      }
    }
    return v;
  }
};

template <int N>
struct Converter<f16, N> {
  __device__ static Vector<f16, N> of(const float (&x)[N]) {
    Vector<f16, N> v;
    if constexpr (N == 1) {
      v.value[0].bits = __half_raw(__float2half_rn(x[0])).x;
    } else {
#pragma unroll
      for (int k = 0; k < N; k += 2) {
        const __half2_raw pair = __floats2half2_rn(x[k], x[k + 1]);
        v.value[k].bits = pair.x, v.value[k + 1].bits = pair.y;
      }
    }
    return v;
  }
};

/// The same with conversion: N elements as fp32, and N floats rounded to T.
template <class Whole, int N, class T>
__device__ void load(float (&x)[N], const T* p, std::int64_t i, std::int64_t n) {
  const Vector<T, N> v = load<Whole, N>(p, i, n);
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] = to_float(v.value[k]);
}
template <class Whole, int N, class T>
__device__ void store(T* p, std::int64_t i, std::int64_t n, const float (&x)[N]) {
  store<Whole, N>(p, i, n, Converter<T, N>::of(x));
}
template <class T>
__device__ T rounded(float x) {
  return Converter<T, 1>::of({x}).value[0];
}

/// A flat range over blocks: each thread has `unroll` vectors of N elements, which it loads before it computes.
template <int N, int unroll>
struct Tile {
  std::int64_t first;
  __device__ Tile() : first((static_cast<std::int64_t>(blockIdx.x) * blockDim.x * unroll + threadIdx.x) * N) {}
  /// Where this thread's vector u begins.
  __device__ std::int64_t at(int u) const { return first + static_cast<std::int64_t>(u) * blockDim.x * N; }
  /// Blocks of block_threads for n elements.
  static unsigned blocks(std::int64_t n) {
    const std::int64_t count = ceil_div(n, std::int64_t{block_threads} * unroll * N);
    TESSERA_CUDA_REQUIRE(count < std::int64_t{1} << 31);
    return static_cast<unsigned>(count);
  }
};

/// Whether all pointers (null ones too) lie on sixteen bytes.
template <class... Pointers>
bool on_sixteen_bytes(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}
/// Whether all lengths and strides are whole vectors of so many elements.
inline bool whole_vectors(int elements, std::initializer_list<std::int64_t> lengths) {
  for (const std::int64_t n : lengths) {
    if (n % elements != 0) return false;
  }
  return true;
}

/// Calls f with a float, a bf16 or an f16 value: the element type that dtype names. Others are refused.
template <class F>
void with_float_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    case DType::f16:
      return f(f16{});
    case DType::i64:
    case DType::u16:
    case DType::u32:
    case DType::e4m3:
    case DType::e5m2:
      break;
  }
  TESSERA_CUDA_REQUIRE(is_float(dtype));
}
/// The same of the two types of 16 bits.
template <class F>
void with_half_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::bf16:
      return f(bf16{});
    case DType::f16:
      return f(f16{});
    case DType::f32:
    case DType::i64:
    case DType::u16:
    case DType::u32:
    case DType::e4m3:
    case DType::e5m2:
      break;
  }
  TESSERA_CUDA_REQUIRE(dtype == DType::bf16 || dtype == DType::f16);
}
/// The same of the types of a step's sums of gradients: fp32, bf16, fixed point.
template <class F>
void with_sum_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    case DType::i64:
      return f(std::int64_t{});
    case DType::f16:
    case DType::u16:
    case DType::u32:
    case DType::e4m3:
    case DType::e5m2:
      break;
  }
  TESSERA_CUDA_REQUIRE(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::i64);
}
/// Calls f with std::true_type or std::false_type: Whole.
template <class F>
void with_whole(bool whole, F&& f) {
  whole ? f(std::true_type{}) : f(std::false_type{});
}

}  // namespace tessera::cuda
