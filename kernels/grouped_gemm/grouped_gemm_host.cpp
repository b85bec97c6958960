// Each product is cut into tiles whose sizes depend on the shape alone, and each tile is made of single-threaded oneDNN calls of one size:
// an expert's rows are taken in blocks of as many, and its last block is filled up with zeros. So oneDNN runs the same code for a row
// whatever rows stand beside it, in any mode and on any number of threads.
//
// What is filled up costs at most a block of rows less one for each expert. Blocks are an eighth of the rows that an expert has on average,
// within 16 and 128: some 6 % of the work where experts have 128 rows and more.
//
// Operands are copied into the cache a piece at a time, where a matrix's piece serves up to 256 rows. fp16 is widened to fp32 on the way,
// and so is bf16 where the processor multiplies that faster (kernels/gemm/gemm_host.cpp).
#include "kernels/gemm/host_bytes.hpp"
#include "kernels/grouped_gemm/grouped_gemm.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.hpp"
#include "kernels/gemm/matmul_host.hpp"
#include "kernels/gemm/row_product.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {

constexpr std::int64_t most_columns = 384, most_depth = 512, group_rows = 256;
/// Rows of copies are a cache line longer than what they hold: see gemm_host.cpp.
constexpr std::int64_t pad = line / sizeof(float);

/// Rows of a block: divides group_rows.
std::int64_t block_rows(std::int64_t rows, std::int64_t E) {
  const auto eighth = static_cast<std::uint64_t>(std::max<std::int64_t>(rows / (8 * E), 1));
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::bit_floor(eighth)), 16, 128);
}

/// Of copies.
DType computed(DType dtype) { return is_widened(dtype) ? DType::f32 : dtype; }

void check(DType dtype, std::int64_t rows, std::int64_t E, std::int64_t N, std::int64_t K) {
  TESSERA_REQUIRE(is_float(dtype), "grouped products of {}", name_of(dtype));
  TESSERA_REQUIRE(rows >= 0 && E > 0 && N > 0 && K > 0, "grouped products of {} rows, {} experts, N={} K={}", rows, E, N, K);
}

/// A copy of rows x columns from `from`, whose rows are `stride` apart, in the type that is computed in; rows up to `filled` are zeros. Its
/// rows are columns + pad apart.
void copy_block(std::byte* to, const void* from, DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                std::int64_t filled) {
  const DType type = computed(dtype);
  const std::size_t row_bytes = static_cast<std::size_t>(columns + pad) * size_of(type);
  for (std::int64_t r = 0; r < rows; ++r) {
    std::byte* t = to + static_cast<std::size_t>(r) * row_bytes;
    const std::byte* f = at(from, r * stride, dtype);
    if (type == dtype) {
      std::memcpy(t, f, static_cast<std::size_t>(columns) * size_of(dtype));
      continue;
    }
    with_half_type(dtype, "grouped_gemm", [&](auto element) {
      auto* wide = reinterpret_cast<float*>(t);
      auto* half = reinterpret_cast<const decltype(element)*>(f);
      for_vectors(0, columns, [&](std::int64_t i, auto n) { store(wide + i, load(half + i, n), n); });
    });
  }
  std::memset(to + static_cast<std::size_t>(rows) * row_bytes, 0, static_cast<std::size_t>(filled - rows) * row_bytes);
}

/// The sizes of pieces that `all` is cut into: whole ones and a last one.
struct Sizes {
  std::int64_t whole, last;
  Sizes(std::int64_t all, std::int64_t most) : whole(std::min(all, most)), last(all % whole == 0 ? whole : all % whole) {}
};

/// Room of a worker: copies of a and b, sums, and what oneDNN asks for.
struct Room {
  std::size_t a = 0, b = 0, c = 0, scratch = 0;
  std::size_t bytes() const { return a + b + c + scratch; }
};
struct WorkerRoom {
  std::byte *a, *b, *scratch;
  float* c;
  WorkerRoom(const Context& context, const Room& room, std::int64_t worker) {
    a = context.workspace.data() + static_cast<std::size_t>(worker) * room.bytes();
    b = a + room.a;
    c = reinterpret_cast<float*>(b + room.b);
    scratch = b + room.b + room.c;
  }
};

// ---- Rows times matrices: a tile is some columns of a group of up to 256 rows of an expert ----

/// A block of rows, all of which and a piece of the columns are multiplied over a piece of the depth.
Matmul block_of(const GroupedGemm& p, std::int64_t columns, std::int64_t depth, bool accumulate) {
  return {.M = block_rows(p.rows, p.E),
          .N = columns,
          .K = depth,
          .a_stride = depth + pad,
          .b_stride = (p.b_transposed ? depth : columns) + pad,
          .c_stride = columns,
          .b_transposed = p.b_transposed,
          .accumulate = accumulate,
          .in = computed(p.dtype),
          .out = DType::f32};
}

Room room_of(const GroupedGemm& p) {
  const Sizes columns(p.N, most_columns), depths(p.K, most_depth);
  const std::int64_t block = block_rows(p.rows, p.E);
  Room room;
  room.c = aligned(static_cast<std::size_t>(group_rows * columns.whole) * sizeof(float));
  if (p.one_by_one) return room;
  for (const std::int64_t n : {columns.whole, columns.last})
    for (const std::int64_t k : {depths.whole, depths.last})
      for (const bool accumulate : {false, true})
        room.scratch = std::max(room.scratch, matmul_scratch_bytes(block_of(p, n, k, accumulate), 1));
  const std::int64_t b = p.b_transposed ? columns.whole * (depths.whole + pad) : depths.whole * (columns.whole + pad);
  room.a = aligned(static_cast<std::size_t>(block * (depths.whole + pad)) * size_of(computed(p.dtype)));
  room.b = aligned(static_cast<std::size_t>(b) * size_of(computed(p.dtype)));
  room.scratch = aligned(room.scratch);
  return room;
}

struct Tile {
  std::int64_t expert, row, rows, column, columns;
};

/// The tile of a number: those of an expert's columns follow each other, so that its matrix stays in the cache.
Tile tile_of(const GroupedGemm& p, std::int64_t number) {
  const std::int64_t across = ceil_div(p.N, most_columns);
  for (std::int64_t e = 0; e < p.E; ++e) {
    const std::int64_t begin = p.offsets[e], rows = p.offsets[e + 1] - begin, groups = ceil_div(rows, group_rows);
    if (number >= groups * across) {
      number -= groups * across;
      continue;
    }
    const std::int64_t row = number % groups * group_rows, column = number / groups * most_columns;
    return {e, begin + row, std::min(group_rows, rows - row), column, std::min(most_columns, p.N - column)};
  }
  fail(ExitCode::internal, "a grouped product has no tile {}", number);
}

std::int64_t tiles_of(const GroupedGemm& p) {
  std::int64_t groups = 0;
  for (std::int64_t e = 0; e < p.E; ++e) groups += ceil_div(p.offsets[e + 1] - p.offsets[e], group_rows);
  return groups * ceil_div(p.N, most_columns);
}

/// Each row reads its expert's matrix where it lies.
void multiply_one_by_one(const GroupedGemm& p, const Tile& t, const WorkerRoom& room) {
  with_float_type(p.dtype, "grouped_gemm", [&](auto type) {
    using T = decltype(type);
    const T* b = static_cast<const T*>(p.b) + (t.expert * p.N + t.column) * p.K;
    for (std::int64_t row = 0; row < t.rows; ++row)
      row_product::multiply(room.c + row * t.columns, static_cast<const T*>(p.a) + (t.row + row) * p.from_a(), b, t.columns, p.K);
  });
}

void multiply(const GroupedGemm& p, const Tile& t, const WorkerRoom& room) {
  if (p.one_by_one) return multiply_one_by_one(p, t, room);
  const std::int64_t block = block_rows(p.rows, p.E);
  for (std::int64_t k = 0; k < p.K; k += most_depth) {
    const std::int64_t depth = std::min(most_depth, p.K - k);
    const void* b = at(p.b, t.expert * p.N * p.K + (p.b_transposed ? t.column * p.K + k : k * p.N + t.column), p.dtype);
    if (p.b_transposed)
      copy_block(room.b, b, p.dtype, t.columns, depth, p.K, t.columns);
    else
      copy_block(room.b, b, p.dtype, depth, t.columns, p.N, depth);
    for (std::int64_t row = 0; row < t.rows; row += block) {
      copy_block(room.a, at(p.a, (t.row + row) * p.from_a() + k, p.dtype), p.dtype, std::min(block, t.rows - row), depth, p.from_a(),
                 block);
      run_matmul(block_of(p, t.columns, depth, k > 0), {.c = room.c + row * t.columns, .a = room.a, .b = room.b, .scratch = room.scratch},
                 1);
    }
  }
}

template <class T>
void finish(const GroupedGemm& p, const Tile& t, const float* sums) {
  for (std::int64_t row = 0; row < t.rows; ++row) {
    T* to = static_cast<T*>(p.c) + (t.row + row) * p.from_c() + t.column;
    for_vectors(0, t.columns, [&](std::int64_t i, auto n) {
      const auto sum = p.scale * load(sums + row * t.columns + i, n);
      store(to + i, p.accumulate ? load(to + i, n) + sum : sum, n);
    });
  }
}

// ---- Gradients of matrices: a tile is a piece of an expert's matrix, whose rows are added block by block ----

Matmul block_of(const GroupedWeightGradient& p, std::int64_t rows, std::int64_t columns, bool accumulate) {
  return {.M = rows,
          .N = columns,
          .K = block_rows(p.rows, p.E),
          .a_stride = rows + pad,
          .b_stride = columns + pad,
          .c_stride = p.K,
          .a_transposed = true,
          .accumulate = accumulate,
          .in = computed(p.dtype),
          .out = DType::f32};
}

constexpr std::int64_t most_rows = 256;  // of a piece of a matrix

Room room_of(const GroupedWeightGradient& p) {
  const Sizes rows(p.N, most_rows), columns(p.K, most_columns);
  const std::int64_t block = block_rows(p.rows, p.E);
  Room room;
  for (const std::int64_t m : {rows.whole, rows.last})
    for (const std::int64_t n : {columns.whole, columns.last})
      for (const bool accumulate : {false, true})
        room.scratch = std::max(room.scratch, matmul_scratch_bytes(block_of(p, m, n, accumulate), 1));
  room.a = aligned(static_cast<std::size_t>(block * (rows.whole + pad)) * size_of(computed(p.dtype)));
  room.b = aligned(static_cast<std::size_t>(block * (columns.whole + pad)) * size_of(computed(p.dtype)));
  room.scratch = aligned(room.scratch);
  return room;
}

void add_rows(const GroupedWeightGradient& p, std::int64_t expert, std::int64_t row, std::int64_t column, const WorkerRoom& room) {
  const std::int64_t rows = std::min(most_rows, p.N - row), columns = std::min(most_columns, p.K - column);
  const std::int64_t block = block_rows(p.rows, p.E), begin = p.offsets[expert], end = p.offsets[expert + 1];
  float* d_w = p.d_w + expert * p.N * p.K + row * p.K + column;
  for (std::int64_t r = 0; begin == end && !p.accumulate && r < rows; ++r) std::fill_n(d_w + r * p.K, columns, 0.0f);
  for (std::int64_t first = begin; first < end; first += block) {
    const std::int64_t valid = std::min(block, end - first);
    copy_block(room.a, at(p.d_y, first * p.from_d_y() + row, p.dtype), p.dtype, valid, rows, p.from_d_y(), block);
    copy_block(room.b, at(p.x, first * p.K + column, p.dtype), p.dtype, valid, columns, p.K, block);
    run_matmul(block_of(p, rows, columns, p.accumulate || first > begin), {.c = d_w, .a = room.a, .b = room.b, .scratch = room.scratch}, 1);
  }
}

}  // namespace

std::size_t grouped_gemm_workspace_bytes(const GroupedGemm& p) {
  check(p.dtype, p.rows, p.E, p.N, p.K);
  return static_cast<std::size_t>(threads()) * room_of(p).bytes();
}

void grouped_gemm(const Context& context, const GroupedGemm& p) {
  check(p.dtype, p.rows, p.E, p.N, p.K);
  TESSERA_REQUIRE(p.b_transposed || !p.one_by_one, "grouped products of rows alone with matrices that are not transposed");
  const Room room = room_of(p);
  const std::int64_t used = p.offsets[p.E];
  TESSERA_REQUIRE(used <= p.rows, "experts have {} rows of {}", used, p.rows);
  parallel_workers(tiles_of(p), [&](std::int64_t worker, std::int64_t number) {
    const WorkerRoom mine(context, room, worker);
    const Tile tile = tile_of(p, number);
    multiply(p, tile, mine);
    with_float_type(p.dtype, "grouped_gemm", [&](auto type) { finish<decltype(type)>(p, tile, mine.c); });
  });
  const auto size = static_cast<std::int64_t>(size_of(p.dtype));
  for (std::int64_t row = used; row < p.rows && !p.accumulate; ++row)
    std::memset(static_cast<std::byte*>(p.c) + row * p.from_c() * size, 0, static_cast<std::size_t>(p.N * size));
}

std::size_t grouped_weight_gradient_workspace_bytes(const GroupedWeightGradient& p) {
  check(p.dtype, p.rows, p.E, p.N, p.K);
  return static_cast<std::size_t>(threads()) * room_of(p).bytes();
}

void grouped_weight_gradient(const Context& context, const GroupedWeightGradient& p) {
  check(p.dtype, p.rows, p.E, p.N, p.K);
  const Room room = room_of(p);
  const std::int64_t down = ceil_div(p.N, most_rows), across = ceil_div(p.K, most_columns);
  parallel_workers(p.E * down * across, [&](std::int64_t worker, std::int64_t piece) {
    add_rows(p, piece / (down * across), piece / across % down * most_rows, piece % across * most_columns,
             WorkerRoom(context, room, worker));
  });
}

}  // namespace tessera::kernels::host
