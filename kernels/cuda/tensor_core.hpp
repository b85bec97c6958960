// What matrix kernels for sm_80 and later are built from: tensor-core products of a warp, loads of their operands from shared memory, and
// copies from global to shared memory that run beside arithmetic. Each is one PTX instruction; the emulator has a twin by the fragment
// layouts of the PTX ISA (section "Matrix multiply-accumulate operation using mma instruction").
//
// Fragments, for lane l with g = l / 4 and t = l % 4; a register holds two elements T, bf16 or f16, the lower column (or row of B) in the
// lower half:
//   A (16 x 16)  a[0] = (g, 2t..), a[1] = (g + 8, 2t..), a[2] = (g, 2t + 8..), a[3] = (g + 8, 2t + 8..)
//   B (16 x 8)   b0 = (2t.., g), b1 = (2t + 8.., g)
//   C (16 x 8)   c[0], c[1] = (g, 2t..), c[2], c[3] = (g + 8, 2t..), fp32
#pragma once
#include <type_traits>

#include "base/backend.hpp"

#include "kernels/cuda/device.hpp"
#ifdef TESSERA_EMULATED_GPU
#include <stdexcept>
#endif

namespace tessera::cuda {

/// Bytes of an element of these products.
inline constexpr std::size_t half_bytes = 2;

#ifndef TESSERA_EMULATED_GPU

/// code(the name of T in PTX).
#define TESSERA_OF_TYPE(T, code)           \
  if constexpr (std::is_same_v<T, bf16>) { \
    code("bf16");                          \
  } else {                                 \
    static_assert(std::is_same_v<T, f16>); \
    code("f16");                           \
  }

/// c += a b, with all lanes of a warp.
template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1){
#define TESSERA_MULTIPLY_ADD(type)                                    \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "  \
               "{%0, %1, %2, %3};"                                    \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    TESSERA_OF_TYPE(T, TESSERA_MULTIPLY_ADD)
#undef TESSERA_MULTIPLY_ADD
}

__device__ __forceinline__ std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

/// Four 8 x 8 matrices of 16-bit elements. Lane l names row l % 8 of matrix l / 8 (16 bytes, aligned); in r[i], lane l gets elements
/// 2 (l % 4) and the next of row l / 4 of matrix i.
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared_row))
               : "memory");
}

/// The same with each matrix transposed: lane l gets rows 2 (l % 4) and the next of column l / 4.
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&r)[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared_row))
               : "memory");
}

/// Starts a copy of the first `bytes` (0 to 16) of 16 from global to shared memory; the others become zero. Both are aligned to 16.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}

/// The same of 4 bytes: 4 or none. For rows that do not begin at multiples of 16 bytes.
__device__ __forceinline__ void copy_async_4(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}

/// Copies of this thread since the last commit become a group.
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until all but the `left` youngest groups of this thread have arrived. Other threads see them after a barrier.
template <int left>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/// Two floats rounded to T, `low` in the lower half.
template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  std::uint32_t packed;
#define TESSERA_PACK(type) asm("cvt.rn." type "x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low))
  TESSERA_OF_TYPE(T, TESSERA_PACK)
#undef TESSERA_PACK
  return packed;
}

/// 2^x within 2 ulp; results below 2^-126 are 0.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#else

namespace fragments {
template <class T>
float element(std::uint32_t pair, int half) {
  return static_cast<float>(std::bit_cast<T>(static_cast<std::uint16_t>(half ? pair >> 16 : pair)));
}

struct Row {
  std::uint16_t elements[8];
};

/// The 32 rows that the lanes name, each read when its lane arrives.
inline const Row* shared_rows(const void* shared_row) {
  if (reinterpret_cast<std::uintptr_t>(shared_row) % 16 != 0) throw std::logic_error("emulator: ldmatrix of a row that is not aligned");
  return reinterpret_cast<const Row*>(emulator::exchange(all_lanes, shared_row, sizeof(Row)));
}

inline std::uint32_t pair(std::uint16_t low, std::uint16_t high) { return low | static_cast<std::uint32_t>(high) << 16; }
}  // namespace fragments

template <class T>
void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  const std::uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const auto* all = reinterpret_cast<const std::uint32_t(*)[6]>(emulator::exchange(all_lanes, mine, sizeof mine));
  const int g = emulator::lane() / 4, t = emulator::lane() % 4;
  for (int k = 0; k < 16; ++k) {
    const int owner = k % 8 / 2;
    const float b[2] = {fragments::element<T>(all[8 * t + owner][4 + k / 8], k % 2),
                        fragments::element<T>(all[8 * t + 4 + owner][4 + k / 8], k % 2)};
    for (int half = 0; half < 2; ++half) {
      const float x = fragments::element<T>(all[4 * g + owner][k / 8 * 2 + half], k % 2);
      c[2 * half] += x * b[0];
      c[2 * half + 1] += x * b[1];
    }
  }
}

inline void load_matrices(std::uint32_t (&r)[4], const void* shared_row) {
  const fragments::Row* rows = fragments::shared_rows(shared_row);
  const int g = emulator::lane() / 4, t = emulator::lane() % 4;
  for (int i = 0; i < 4; ++i) r[i] = fragments::pair(rows[8 * i + g].elements[2 * t], rows[8 * i + g].elements[2 * t + 1]);
}

inline void load_matrices_transposed(std::uint32_t (&r)[4], const void* shared_row) {
  const fragments::Row* rows = fragments::shared_rows(shared_row);
  const int g = emulator::lane() / 4, t = emulator::lane() % 4;
  for (int i = 0; i < 4; ++i) r[i] = fragments::pair(rows[8 * i + 2 * t].elements[g], rows[8 * i + 2 * t + 1].elements[g]);
}

inline void copy_async_16(void* shared, const void* global, int bytes) { emulator::copy_async(shared, global, 16, bytes); }
inline void copy_async_4(void* shared, const void* global, int bytes) { emulator::copy_async(shared, global, 4, bytes); }
inline void copy_async_commit() { emulator::copy_async_commit(); }
template <int left>
void copy_async_wait() {
  emulator::copy_async_wait(left);
}
template <class T>
std::uint32_t pack(float low, float high) {
  return fragments::pair(T(low).bits, T(high).bits);
}
using emulator::exp2_approximate;

#endif

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % warp_lanes; }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / warp_lanes; }

/// x, but the compiler does not know: it would compute every address of a loop's products and copies before the loop and keep them all in
/// registers.
__device__ __forceinline__ int hidden(unsigned x) {
#ifndef TESSERA_EMULATED_GPU
  asm volatile("" : "+r"(x));
#endif
  return static_cast<int>(x);
}

/// Starts the copy of the first `bytes` of a chunk of 16; the others become zero.
template <bool wide, class T>
__device__ __forceinline__ void copy_chunk(T* to, const T* from, int bytes) {
  if constexpr (wide) {
    copy_async_16(to, from, bytes);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) copy_async_4(to + 2 * j, from + 2 * j, bytes > 4 * j ? 4 : 0);
  }
}

}  // namespace tessera::cuda
