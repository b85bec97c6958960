// Products of a warpgroup (four warps) on Hopper's tensor cores, wgmma: they run beside other code, with the right operand in shared
// memory and the left one there or in registers. sm_90a alone; code for other targets traps. The emulator's twins do the work at the wait,
// so a missing wait shows as NaN, and stop where what a product reads has changed since it was started.
//
// What lies in shared memory lies in panels of 64 columns: rows of 128 bytes whose eight 16-byte chunks are permuted, chunk ^ (row % 8),
// from an address that is a multiple of 1024. The PTX ISA calls this the 128-byte swizzle; a descriptor names it (section "Matrix
// descriptor").
#pragma once
#include "base/backend.hpp"
#include "kernels/cuda/tensor_core.hpp"
#ifdef TESSERA_EMULATED_GPU
#include <algorithm>
#include <vector>
#endif

namespace tessera::cuda {

inline constexpr int warpgroup_lanes = 4 * warp_lanes, panel_columns = 64;

/// Where chunk `chunk` of a row lies, in elements, in `rows` rows of consecutive panels.
template <int rows>
__device__ __forceinline__ unsigned panel_chunk_at(unsigned row, unsigned chunk) {
  return (chunk / 8 * rows + row) * panel_columns + ((chunk % 8) ^ (row % 8)) * 8;
}

/// A descriptor of the operand that begins at a shared address: 128-byte swizzle, groups of 8 rows 1024 bytes apart. Both of its offsets
/// say so: where rows are the product's depth, the PTX ISA can be read to take either. Of an operand that lies in several panels, whose
/// rows are the product's depth, the leading one (bits 16-29) says how many bytes are from a panel to the next.
__device__ __forceinline__ std::uint64_t panel_descriptor(std::uint32_t address, std::uint32_t to_next_panel = 1024) {
  return (address & 0x3ffffu) >> 4 | std::uint64_t{to_next_panel >> 4} << 16 | std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 62;
}

/// The descriptor of what lies `bytes`, a multiple of 16, further. Shared memory ends below 2^18, so nothing is carried out of the address.
/// A sum, which the compiler folds; of a descriptor built from each address it repeats the mask and the fields.
__device__ __forceinline__ std::uint64_t further(std::uint64_t descriptor, int bytes) {
  return descriptor + static_cast<std::uint64_t>(bytes / 16);
}

#ifndef TESSERA_EMULATED_GPU

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TESSERA_WARPGROUP_PTX(code) code
#else
#define TESSERA_WARPGROUP_PTX(code) __trap()
#endif

/// Registers are written before, and read after, what the compiler cannot see: between the two calls around products they belong to those.
template <int N>
__device__ __forceinline__ void fence_registers(float (&c)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[n][i])::"memory");
}
template <int N>
__device__ __forceinline__ void fence_registers(std::uint32_t (&a)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a[n][i])::"memory");
}

/// Before products that use registers written by ordinary code.
__device__ __forceinline__ void warpgroup_fence() { TESSERA_WARPGROUP_PTX(asm volatile("wgmma.fence.sync.aligned;" ::: "memory")); }
__device__ __forceinline__ void warpgroup_commit() { TESSERA_WARPGROUP_PTX(asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")); }
/// Waits until all but the `left` youngest groups of products are done.
template <int left>
__device__ __forceinline__ void warpgroup_wait() {
  TESSERA_WARPGROUP_PTX(asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory"));
}

/// What this thread wrote to shared memory (copies of its own that have arrived included) becomes visible to products after a barrier.
__device__ __forceinline__ void shared_to_products() { TESSERA_WARPGROUP_PTX(asm volatile("fence.proxy.async.shared::cta;" ::: "memory")); }

#define TESSERA_ROW_OF_SUMS(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define TESSERA_8_ROWS_OF_SUMS(c, n)                                                                                      \
  TESSERA_ROW_OF_SUMS(c, n), TESSERA_ROW_OF_SUMS(c, n + 1), TESSERA_ROW_OF_SUMS(c, n + 2), TESSERA_ROW_OF_SUMS(c, n + 3), \
      TESSERA_ROW_OF_SUMS(c, n + 4), TESSERA_ROW_OF_SUMS(c, n + 5), TESSERA_ROW_OF_SUMS(c, n + 6), TESSERA_ROW_OF_SUMS(c, n + 7)
#define TESSERA_32_PLACES                                                                                                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, " \
  "%28, %29, %30, %31"
#define TESSERA_64_PLACES                                                                                                           \
  TESSERA_32_PLACES                                                                                                                 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, " \
  "%57, %58, %59, %60, %61, %62, %63"
#define TESSERA_128_PLACES                                                                                                          \
  TESSERA_64_PLACES                                                                                                                 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, " \
  "%89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TESSERA_PRODUCT(type, N, places) "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." type "." type " {" places "}, "

/// c (64 x 64, fp32) = (add ? c : 0) + a (64 x 16) b (16 x 64), of elements T. Warp w of the warpgroup holds rows 16 w.. of a and c as
/// fragments of multiply_add. b, at the descriptor: its 64 columns as rows of a panel (16 elements from a 32-byte step on), or, if
/// `transposed`, its 16 rows as rows of a panel.
template <class T, bool transposed>
__device__ __forceinline__ void start_product(float (&c)[8][4], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
#define TESSERA_START(type)                                                                         \
  TESSERA_WARPGROUP_PTX(                                                                            \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n" TESSERA_PRODUCT(                    \
                       type, "64", TESSERA_32_PLACES) "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}" \
                   : TESSERA_8_ROWS_OF_SUMS(c, 0)                                                   \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(transposed))))
  TESSERA_OF_TYPE(T, TESSERA_START)
#undef TESSERA_START
}

#define TESSERA_OPERANDS(a, b, add, a_transposed, transposed) \
  "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(a_transposed)), "n"(static_cast<int>(transposed))

/// The same with a in shared memory too, at a descriptor: its 64 rows as rows of a panel, or, if `a_transposed`, its 16 columns. c and b
/// have 64, 128 or 256 columns: rows of one panel, or, if `transposed`, columns of one, two or four.
template <class T, bool transposed, bool a_transposed = false>
__device__ __forceinline__ void start_product(float (&c)[8][4], std::uint64_t a, std::uint64_t b, bool add) {
#define TESSERA_START(type)                                                                                                          \
  TESSERA_WARPGROUP_PTX(                                                                                                             \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n" TESSERA_PRODUCT(type, "64", TESSERA_32_PLACES) "%32, %33, p, 1, 1, " \
                                                                                                               "%35, %36;\n}"        \
                   : TESSERA_8_ROWS_OF_SUMS(c, 0)                                                                                    \
                   : TESSERA_OPERANDS(a, b, add, a_transposed, transposed)))
  TESSERA_OF_TYPE(T, TESSERA_START)
#undef TESSERA_START
}
template <class T, bool transposed, bool a_transposed = false>
__device__ __forceinline__ void start_product(float (&c)[16][4], std::uint64_t a, std::uint64_t b, bool add) {
#define TESSERA_START(type)                                                                                                           \
  TESSERA_WARPGROUP_PTX(                                                                                                              \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n" TESSERA_PRODUCT(type, "128", TESSERA_64_PLACES) "%64, %65, p, 1, 1, " \
                                                                                                                "%67, %68;\n}"        \
                   : TESSERA_8_ROWS_OF_SUMS(c, 0), TESSERA_8_ROWS_OF_SUMS(c, 8)                                                       \
                   : TESSERA_OPERANDS(a, b, add, a_transposed, transposed)))
  TESSERA_OF_TYPE(T, TESSERA_START)
#undef TESSERA_START
}
template <class T, bool transposed, bool a_transposed = false>
__device__ __forceinline__ void start_product(float (&c)[32][4], std::uint64_t a, std::uint64_t b, bool add) {
#define TESSERA_START(type)                                                                                                      \
  TESSERA_WARPGROUP_PTX(asm volatile(                                                                                            \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n" TESSERA_PRODUCT(type, "256", TESSERA_128_PLACES) "%128, %129, p, 1, 1, "     \
                                                                                                     "%131, %132;\n}"            \
      : TESSERA_8_ROWS_OF_SUMS(c, 0), TESSERA_8_ROWS_OF_SUMS(c, 8), TESSERA_8_ROWS_OF_SUMS(c, 16), TESSERA_8_ROWS_OF_SUMS(c, 24) \
      : TESSERA_OPERANDS(a, b, add, a_transposed, transposed)))
  TESSERA_OF_TYPE(T, TESSERA_START)
#undef TESSERA_START
}

#else

namespace products {
struct Product {
  float (*c)[4] = nullptr;
  float before[32][4] = {};
  std::uint32_t a[4] = {};
  std::uint64_t left = 0, b = 0;  // left is 0 where a holds the left operand
  bool a_transposed = false, transposed = false;
  float (*value)(std::uint32_t pair, int half) = nullptr;  // of an element's bits
  bool chained = false;                                    // adds to what an earlier product of the queue leaves in c
  int columns = 0;
  std::int64_t group = 0;
  std::uint64_t digest = 0;  // of what it reads, by one lane
};
struct Queue {
  std::vector<Product> started;
  std::int64_t group = 0, block = 0;
};
/// Each thread's, while its block runs: one that an error ended leaves products behind.
inline Queue& queue() {
  static std::vector<Queue> all(1024);
  Queue& mine = all[threadIdx.x];
  if (mine.block != emulator::block_number()) mine = {.started = {}, .group = 0, .block = emulator::block_number()};
  return mine;
}

/// Where element `column` of a row of the panels at a descriptor lies. Only where there are several is it known what the leading offset is.
inline const std::byte* place(std::uint64_t descriptor, int row, int column, int panels = 1) {
  const auto field = [&](int at) { return static_cast<std::uint32_t>(descriptor >> at & 0x3fff) << 4; };
  if (descriptor >> 62 != 1) throw std::logic_error("emulator: a descriptor without the 128-byte swizzle");
  if ((descriptor >> 14 & 3) != 0) throw std::logic_error("emulator: a descriptor of an address beyond what it can hold");
  if (panels == 1 && field(16) != field(32))
    throw std::logic_error("emulator: a descriptor with two offsets, of which it is not known which one counts");
  std::uint32_t address = field(0) + static_cast<std::uint32_t>(row / 8) * field(32) +
                          static_cast<std::uint32_t>(column / panel_columns) * field(16) +
                          static_cast<std::uint32_t>(row % 8 * 128 + column % panel_columns * 2);
  address ^= address >> 3 & 0x70;
  return static_cast<const std::byte*>(emulator::dynamic_shared()) + address;
}

inline float element(const Product& p, std::uint64_t descriptor, int row, int column, int panels = 1) {
  std::uint16_t bits;
  std::memcpy(&bits, place(descriptor, row, column, panels), sizeof bits);
  return p.value(bits, 0);
}

inline int row_of_warp() { return static_cast<int>(threadIdx.x) % warpgroup_lanes / warp_lanes * 16; }

/// Calls f with each 16 bytes that a warp's part of a product reads while it runs.
template <class F>
void for_chunks(const Product& p, F f) {
  const auto read = [&](std::uint64_t descriptor, int first_row, int rows, int first_column, int columns, int panels) {
    for (int row = first_row; row < first_row + rows; ++row)
      for (int column = first_column; column < first_column + columns; column += 8) f(place(descriptor, row, column, panels));
  };
  if (p.left != 0) p.a_transposed ? read(p.left, 0, 16, row_of_warp(), 16, 1) : read(p.left, row_of_warp(), 16, 0, 16, 1);
  p.transposed ? read(p.b, 0, 16, 0, p.columns, p.columns / panel_columns) : read(p.b, 0, p.columns, 0, 16, 1);
}

inline std::uint64_t digest(const Product& p) {
  std::uint64_t hash = 0;
  for_chunks(p, [&](const std::byte* chunk) {
    std::uint64_t words[2];
    std::memcpy(words, chunk, sizeof words);
    for (std::uint64_t word : words) hash = (hash ^ word) * 0x9e3779b97f4a7c15u + (hash >> 32);
  });
  return hash;
}

/// By one of a warp's lanes.
inline void watch(Product& p) {
  if (emulator::lane() != 0) return;
  if (emulator::watches_races())
    for_chunks(p, [](const std::byte* chunk) { emulator::products_read(chunk, 16); });
  else
    p.digest = digest(p);
}

inline void finish(const Product& p) {
  if (emulator::lane() == 0 && !emulator::watches_races() && digest(p) != p.digest)
    throw std::logic_error("emulator: what a product reads changed while it ran");
  const auto* all = reinterpret_cast<const std::uint32_t(*)[4]>(emulator::exchange(all_lanes, p.a, sizeof p.a));
  const int g = emulator::lane() / 4, t = emulator::lane() % 4, panels = p.transposed ? p.columns / panel_columns : 1;
  const auto left_element = [&](int row, int k) {
    return p.a_transposed ? element(p, p.left, k, row_of_warp() + row) : element(p, p.left, row_of_warp() + row, k);
  };
  if (!p.chained) std::memcpy(p.c, p.before, static_cast<std::size_t>(p.columns / 8) * sizeof p.before[0]);
  for (int k = 0; k < 16; ++k) {
    float left[2];
    for (int half = 0; half < 2; ++half)
      left[half] = p.left != 0 ? left_element(g + 8 * half, k) : p.value(all[4 * g + k % 8 / 2][k / 8 * 2 + half], k % 2);
    for (int n = 0; n < p.columns / 8; ++n)
      for (int i = 0; i < 2; ++i) {
        const int column = 8 * n + 2 * t + i;
        const float right = p.transposed ? element(p, p.b, k, column, panels) : element(p, p.b, column, k);
        p.c[n][i] += left[0] * right;
        p.c[n][2 + i] += left[1] * right;
      }
  }
}

/// What has become the first of its chain, because those before it are done, takes their sums: c stays unreadable until it is done too.
inline void take_sums(Product& p) {
  const std::size_t bytes = static_cast<std::size_t>(p.columns / 8) * sizeof p.before[0];
  std::memcpy(p.before, p.c, bytes);
  std::memset(static_cast<void*>(p.c), 0xff, bytes);
  p.chained = false;
}

template <int N>
void start(Product p, float (&c)[N][4], bool add) {
  p.c = c;
  p.columns = 8 * N;
  p.group = queue().group;
  for (const Product& other : queue().started) p.chained = p.chained || (add && other.c == c);
  if (add && !p.chained) std::memcpy(p.before, c, sizeof c);
  std::memset(static_cast<void*>(c), 0xff, sizeof c);
  watch(p);
  queue().started.push_back(p);
}
}  // namespace products

inline std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(static_cast<const std::byte*>(shared) - static_cast<const std::byte*>(emulator::dynamic_shared()));
}
template <class Registers>
void fence_registers(Registers&) {}
inline void warpgroup_fence() {}
inline void warpgroup_commit() { ++products::queue().group; }
template <int left>
void warpgroup_wait() {
  products::Queue& queue = products::queue();
  auto p = queue.started.begin();
  for (; p != queue.started.end() && p->group < queue.group - left; ++p) products::finish(*p);
  queue.started.erase(queue.started.begin(), p);
  for (auto next = queue.started.begin(); next != queue.started.end(); ++next) {
    const auto same = [&](const products::Product& other) { return other.c == next->c; };
    if (next->chained && std::none_of(queue.started.begin(), next, same)) products::take_sums(*next);
  }
  emulator::products_done();
}
inline void shared_to_products() { emulator::products_see(); }

template <class T, bool transposed>
void start_product(float (&c)[8][4], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
  products::start({.a = {a[0], a[1], a[2], a[3]}, .b = b, .transposed = transposed, .value = fragments::element<T>}, c, add);
}
template <class T, bool transposed, bool a_transposed = false, int N>
void start_product(float (&c)[N][4], std::uint64_t a, std::uint64_t b, bool add) {
  products::start({.left = a, .b = b, .a_transposed = a_transposed, .transposed = transposed, .value = fragments::element<T>}, c, add);
}

#endif

}  // namespace tessera::cuda
