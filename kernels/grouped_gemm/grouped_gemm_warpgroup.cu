// Grouped products in bf16 and fp16 for Hopper. A block has 128 x 256 results, or 128 x 128 where the wider tile would be filled up by more
// than an eighth; each of two warpgroups has 64 of the rows, for whose products both operands lie in shared memory. Pieces of the depth go
// round a ring of stages: while the tensor cores multiply piece k, what comes one or two further is on its way from global memory. Sums
// leave by way of the same memory, so that rows are stored 16 bytes a thread.
//
// A result is one sum over the depth in steps of 16, whichever tile it lies in and whatever rows share that.
//
// Bound by tensor-core flops, 2 N K a row, and closely by shared memory: for 262144 multiply-adds a product of 64 x 256 x 16 reads 10 KiB,
// and a piece is written for each 128 rows that read it. Of 64 x 128 it reads 6 KiB for half as many, which is why the wider tile comes
// first. Not yet measured.
#include "kernels/grouped_gemm/grouped_gemm_warpgroup.hpp"

#include "kernels/cuda/devices.hpp"
#include "kernels/cuda/panels.hpp"
#include "kernels/cuda/vector.hpp"
#include "kernels/grouped_gemm/row_tiles.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

constexpr int tile_rows = 128, step = 64;  // step: of the depth
constexpr int warp_rows = 16;

template <int columns>
constexpr int stages = columns == 256 ? 4 : 3;
/// The narrower tile leaves room for two on a multiprocessor.
template <int columns>
constexpr int blocks = columns == 256 ? 1 : 2;
template <int columns>
constexpr int stage_elements = (tile_rows + columns) * step;
template <int columns>
constexpr std::size_t shared_bytes = half_bytes* stages<columns>* stage_elements<columns>;
static_assert(1024 + shared_bytes<256> < 1 << 18);  // with what the driver takes: further() counts on it
static_assert(shared_bytes<256> <= 227 * 1024 && 2 * (1024 + shared_bytes<128>) <= 228 * 1024);

/// Rows of an operand from one on, of which `valid` are there. Element k of row i is from[i stride + k]; of an operand that is stored
/// `down`, with rows as columns, from[k stride + i].
template <class T>
struct Operand {
  const T* from;
  std::int64_t stride;
  int valid;
};

/// A thread's copies of pieces of `rows` rows of an operand, one after the other. A piece is one panel whose rows are those of the operand,
/// or, if `down`, panels of `step` rows with 64 of the operand's each.
template <class T, bool down, int rows>
class Pieces {
 public:
  __device__ __forceinline__ explicit Pieces(const Operand<T>& operand)
      : from_(Copies<width>().source(operand.from, operand.stride)), stride_(operand.stride), valid_(operand.valid) {}
  /// `there`: of the depth.
  __device__ __forceinline__ void load(T* piece, int there) {
    load_panels_from<width, height, true>(piece, from_, stride_, down ? there : valid_, down ? valid_ : there);
    from_ += down ? step * stride_ : step;
  }

 private:
  static constexpr int width = down ? rows : step, height = down ? step : rows;
  const T* from_;
  std::int64_t stride_;
  int valid_;
};

/// From one product over 16 of the depth to the next, in bytes.
template <bool down>
constexpr int to_next_product = down ? 16 * 128 : 32;

/// sums = a b over the whole depth, which is not 0: 64 rows of a warpgroup. Afterwards nothing in shared memory is read any more.
template <bool a_down, bool b_down, int columns, class T>
__device__ __forceinline__ void multiply(float (&sums)[columns / 8][4], const Operand<T>& a, const Operand<T>& b, std::int64_t depth) {
  constexpr int ring = stages<columns>, ahead = ring - 2;
  static_assert(ahead > 0);
  T* shared = dynamic_shared<T>();
  const auto stage = [&](int k) { return shared + k % ring * stage_elements<columns>; };
  Pieces<T, a_down, tile_rows> of_a(a);
  Pieces<T, b_down, columns> of_b(b);
  std::int64_t left = depth;
  const auto load = [&](int k) {
    if (left > 0) {
      const int there = static_cast<int>(left < step ? left : step);
      of_a.load(stage(k), there);
      of_b.load(stage(k) + tile_rows * step, there);
      left -= step;
    }
    copy_async_commit();
  };
  for (int k = 0; k < ahead; ++k) load(k);
#pragma unroll
  for (int n = 0; n < columns / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] = 0;
  const int pieces = static_cast<int>(ceil_div(depth, step));
  int k = 0;
  do {  // There is a piece. ptxas must see it: of a loop that may not run it makes one product after the other (C7515).
    copy_async_wait<ahead - 1>();
    shared_to_products();
    __syncthreads();  // all see piece k, and all are done with k - 2, where k + ahead goes
    const T* piece = stage(k);
    const int own = hidden(threadIdx.x) / warpgroup_lanes * 64 * panel_columns;  // a's rows of this warpgroup, or its panel
    const std::uint64_t from_a = panel_descriptor(shared_address(piece + own)),
                        from_b = panel_descriptor(shared_address(piece + tile_rows * step), b_down ? step * 128 : 1024);
    fence_registers(sums);
    warpgroup_fence();
#pragma unroll
    for (int i = 0; i < step / 16; ++i)
      start_product<T, b_down, a_down>(sums, further(from_a, i * to_next_product<a_down>), further(from_b, i * to_next_product<b_down>),
                                       true);
    warpgroup_commit();
    load(k + ahead);      // beside the products
    warpgroup_wait<1>();  // those of piece k - 1
  } while (++k < pieces);
  warpgroup_wait<0>();
  fence_registers(sums);
  __syncthreads();
}

/// Calls put(row, column, sums) for N neighbouring results, of which a warp's lanes have a row or two at a time. A warp's rows go through
/// its own part of shared memory.
template <int N, int columns, class Put>
__device__ __forceinline__ void for_results(const float (&sums)[columns / 8][4], Put&& put) {
  constexpr int pitch = columns + 8;  // 8 more: what half a warp writes lies in all banks
  static_assert(sizeof(float) * tile_rows * pitch <= shared_bytes<columns>);
  float* rows = dynamic_shared<float>() + warp_index() * warp_rows * pitch;
  const int lane = lane_index();
#pragma unroll
  for (int n = 0; n < columns / 8; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<float2*>(rows + (lane / 4 + 8 * half) * pitch + 8 * n + lane % 4 * 2) = {sums[n][2 * half], sums[n][2 * half + 1]};
  __syncwarp();
#pragma unroll 4
  for (int i = lane * N; i < warp_rows * columns; i += warp_lanes * N) {
    const int row = i / columns, column = i % columns;
    float x[N];
    load<std::true_type, N>(x, rows + row * pitch, column, columns);
    put(warp_index() * warp_rows + row, column, x);
  }
}

template <int columns>
__device__ __forceinline__ int columns_from(std::int64_t first, std::int64_t all) {
  return static_cast<int>(all - first < columns ? all - first : columns);
}

/// Blocks that run together share rows and columns: 8 tiles of rows, which take the columns in turn.
struct Place {
  std::int64_t row_tile, column_tile;
  __device__ __forceinline__ Place(std::int64_t number, std::int64_t row_tiles, std::int64_t column_tiles) {
    constexpr std::int64_t together = 8;
    const std::int64_t first = number / (together * column_tiles) * together, within = number - first * column_tiles;
    const std::int64_t high = row_tiles - first < together ? row_tiles - first : together;
    row_tile = first + within % high;
    column_tile = within / high;
  }
};

template <class T, bool b_transposed, int columns>
__global__ void __launch_bounds__(panel_threads, blocks<columns>) product_kernel(GroupedGemm p, std::int64_t row_tiles) {
  const Place place(blockIdx.x, row_tiles, (p.N + columns - 1) / columns);
  const RowTile rows = row_tile<tile_rows>(p, place.row_tile);
  if (rows.rows == 0) return;
  const std::int64_t column = place.column_tile * columns, stride = p.from_c();
  const int there = columns_from<columns>(column, p.N);
  T* c = static_cast<T*>(p.c) + rows.row * stride + column;
  if (rows.expert == p.E) {
    for (int i = static_cast<int>(threadIdx.x) * 8; i < rows.rows * columns && !p.accumulate; i += panel_threads * 8)
      store<std::true_type, 8>(c + i / columns * stride, i % columns, there, Vector<T, 8>{});
    return;
  }
  const T* a = static_cast<const T*>(p.a) + rows.row * p.from_a();
  const T* b = static_cast<const T*>(p.b) + rows.expert * p.N * p.K + (b_transposed ? column * p.K : column);
  float sums[columns / 8][4];
  multiply<false, !b_transposed, columns>(sums, Operand<T>{a, p.from_a(), rows.rows}, Operand<T>{b, b_transposed ? p.K : p.N, there}, p.K);
  for_results<8, columns>(sums, [&](int i, int j, float(&x)[8]) {
    if (i >= rows.rows || j >= there) return;
    T* to = c + i * stride;
    float before[8];
    if (p.accumulate) load<std::true_type, 8>(before, to, j, there);
#pragma unroll
    for (int n = 0; n < 8; ++n) x[n] = p.accumulate ? before[n] + p.scale * x[n] : p.scale * x[n];
    store<std::true_type, 8>(to, j, there, x);
  });
}

template <class T, int columns>
__global__ void __launch_bounds__(panel_threads, blocks<columns>) gradient_kernel(GroupedWeightGradient p) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * columns, row = static_cast<std::int64_t>(blockIdx.y) * tile_rows;
  const int there = columns_from<columns>(column, p.K), rows = columns_from<tile_rows>(row, p.N);
  const std::int64_t expert = blockIdx.z, begin = p.offsets[expert], end = p.offsets[expert + 1];
  float* d_w = p.d_w + (expert * p.N + row) * p.K + column;
  if (begin == end) {
    for (int i = static_cast<int>(threadIdx.x) * 4; i < rows * columns && !p.accumulate; i += panel_threads * 4)
      store<std::true_type, 4>(d_w + i / columns * p.K, i % columns, there, Vector<float, 4>{});
    return;
  }
  float sums[columns / 8][4];
  multiply<true, true, columns>(sums, Operand<T>{static_cast<const T*>(p.d_y) + begin * p.from_d_y() + row, p.from_d_y(), rows},
                                Operand<T>{static_cast<const T*>(p.x) + begin * p.K + column, p.K, there}, end - begin);
  for_results<4, columns>(sums, [&](int i, int j, float(&x)[4]) {
    if (i >= rows || j >= there) return;
    float* to = d_w + i * p.K;
    float before[4];
    if (p.accumulate) load<std::true_type, 4>(before, to, j, there);
#pragma unroll
    for (int n = 0; n < 4; ++n) x[n] = p.accumulate ? before[n] + x[n] : x[n];
    store<std::true_type, 4>(to, j, there, x);
  });
}

/// Calls f with the columns of a tile, as a type.
template <class F>
void with_columns(std::int64_t all, F f) {
  if (8 * ceil_div(all, 256) * 256 <= 9 * all)
    f(std::integral_constant<int, 256>());
  else
    f(std::integral_constant<int, 128>());
}

}  // namespace

bool takes_warpgroup(const GroupedGemm& p) {
  return size_of(p.dtype) == half_bytes && on_sixteen_bytes(p.a, p.b, p.c) && whole_vectors(8, {p.N, p.K, p.from_a(), p.from_c()}) &&
         is_hopper();
}

bool takes_warpgroup(const GroupedWeightGradient& p) {
  return size_of(p.dtype) == half_bytes && on_sixteen_bytes(p.d_y, p.x, p.d_w) && whole_vectors(8, {p.N, p.K, p.from_d_y()}) && is_hopper();
}

void grouped_gemm_warpgroup(const Context& context, const GroupedGemm& p) {
  with_columns(p.N, [&](auto width) {
    with_whole(p.b_transposed, [&](auto transposed) {
      constexpr int columns = decltype(width)::value;
      constexpr bool b_transposed = decltype(transposed)::value;
      const std::int64_t row_tiles = most_row_tiles(p, tile_rows), tiles = row_tiles * ceil_div(p.N, columns);
      TESSERA_CUDA_REQUIRE(tiles < std::int64_t{1} << 31);
      with_half_type(p.dtype, [&](auto type) {
        launch(stream_of(context), static_cast<unsigned>(tiles), panel_threads, shared_bytes<columns>,
               product_kernel<decltype(type), b_transposed, columns>, p, row_tiles);
      });
    });
  });
}

void grouped_weight_gradient_warpgroup(const Context& context, const GroupedWeightGradient& p) {
  with_columns(p.K, [&](auto width) {
    constexpr int columns = decltype(width)::value;
    const dim3 grid(static_cast<unsigned>(ceil_div(p.K, columns)), static_cast<unsigned>(ceil_div(p.N, tile_rows)),
                    static_cast<unsigned>(p.E));
    with_half_type(p.dtype, [&](auto type) {
      launch(stream_of(context), grid, panel_threads, shared_bytes<columns>, gradient_kernel<decltype(type), columns>, p);
    });
  });
}

}  // namespace tessera::kernels::cuda
