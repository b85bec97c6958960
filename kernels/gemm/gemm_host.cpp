// Four ways to the same product:
// whole     one oneDNN call on all threads. oneDNN may split K over threads (measured: small M and N, large K), so bits depend on them.
// pieces    reproducible mode, and scaled addends: c is cut into pieces that depend on the shape alone, each a single-threaded oneDNN call.
// widened   codes of fp8, fp16, and bf16 where the processor's bf16 dot product is slower than its fp32 multiply-add: Xeons with
//           AVX512_BF16 and no AMX do half the rate, and AVX2 has none. Pieces of a and b are widened to fp32 in the cache and multiplied
//           there. Reproducible by construction.
// row       a decoded token's products, which read b once: see row_product.hpp. Reproducible by construction.
#include "kernels/gemm/gemm.hpp"
#include "kernels/gemm/host_bytes.hpp"
#include "kernels/gemm/packed_codes.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "kernels/gemm/matmul_host.hpp"
#include "kernels/gemm/row_product.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector/float8.hpp"

namespace tessera::kernels::host {
namespace {

Matmul whole_matmul(const Gemm& g) {
  return {.M = g.M,
          .N = g.N,
          .K = g.K,
          .a_stride = g.a_step(),
          .b_stride = g.b_transposed ? g.K : g.N,
          .c_stride = g.c_step(),
          .a_transposed = g.a_transposed,
          .b_transposed = g.b_transposed,
          .accumulate = g.accumulate,
          .bias = g.bias != nullptr,
          .b_packed = g.b_packed,
          .in = g.in,
          .out = g.out,
          .scale = g.scale};
}

/// Where the addend is scaled, pieces are computed in fp32 beside c, so that the sum is rounded once.
bool summed_apart(const Gemm& g) { return g.addend && g.addend_scale != 1; }

Matmul piece_matmul(const Gemm& g, std::int64_t rows, std::int64_t columns) {
  Matmul m = whole_matmul(g);
  m.M = rows, m.N = columns;
  if (summed_apart(g)) m.out = DType::f32, m.c_stride = columns, m.scale = 1, m.bias = false;
  return m;
}

// The fixed cut of c: rows x columns of a piece. Functions of the shape alone.
struct Cut {
  std::int64_t rows = 0, columns = 0;
};

Cut cut_of(const Gemm& g) {
  std::int64_t rows = std::min<std::int64_t>(g.M, g.M >= 2048 ? 512 : 256), row_pieces = ceil_div(g.M, rows);
  // Packed b is one block. Otherwise few rows are compensated by cutting columns, so that there are some eight pieces.
  if (g.b_packed || row_pieces >= 8) return {rows, g.N};
  return {rows, std::min(g.N, std::max<std::int64_t>(128, round_up(ceil_div(g.N, ceil_div(8, row_pieces)), 64)))};
}

// Calls f(shape of the piece, row, column) for the distinct sizes: body and tails.
template <class F>
void for_each_piece_shape(const Gemm& g, F f) {
  Cut cut = cut_of(g);
  for (std::int64_t rows : {cut.rows, g.M % cut.rows})
    for (std::int64_t columns : {cut.columns, g.N % cut.columns})
      if (rows > 0 && columns > 0) f(piece_matmul(g, rows, columns));
}

/// Of a piece that is computed beside c.
std::size_t piece_sums_bytes(const Gemm& g) {
  const Cut cut = cut_of(g);
  return summed_apart(g) ? aligned(static_cast<std::size_t>(cut.rows * cut.columns) * sizeof(float)) : 0;
}

std::size_t piece_scratch_bytes(const Gemm& g) {
  std::size_t most = 0;
  for_each_piece_shape(g, [&](const Matmul& m) { most = std::max(most, matmul_scratch_bytes(m, 1)); });
  return piece_sums_bytes(g) + aligned(most);
}

// A piece of c += addend, while it is in the cache where pieces are computed one by one.
template <class Out>
void add_addend(const Gemm& g, std::int64_t row, std::int64_t column, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = row; r < row + rows; ++r) {
    Out* c = static_cast<Out*>(g.c) + r * g.c_step() + column;
    const Out* addend = static_cast<const Out*>(g.addend) + r * g.c_step() + column;
    for_vectors(0, columns, [&](std::int64_t i, auto n) { store(c + i, load(c + i, n) + load(addend + i, n), n); });
  }
}
void join_addend(const Gemm& g, std::int64_t row, std::int64_t column, std::int64_t rows, std::int64_t columns) {
  if (!g.addend) return;
  with_float_type(g.out, "gemm", [&](auto type) { add_addend<decltype(type)>(g, row, column, rows, columns); });
}

bool has_blocks(const Fp8Operand& p) { return p.scaling == Fp8Scaling::row_blocks || p.scaling == Fp8Scaling::square_blocks; }

/// Scales that sums are multiplied by: that of row r of a times those of b's.
struct SumScales {
  const Fp8Operand* a = nullptr;
  const Fp8Operand* b = nullptr;
  explicit SumScales(const Gemm& g) {
    if (g.fp8 && !has_blocks(g.fp8->a)) a = &g.fp8->a, b = &g.fp8->b;
  }
  float of_row(std::int64_t row) const { return a->scales[a->scaling == Fp8Scaling::rows ? row : 0]; }
  template <class Count>
  TESSERA_INLINE f32x16 of_columns(std::int64_t column, Count n) const {
    return b->scaling == Fp8Scaling::rows ? load(b->scales + column, n) : splat(*b->scales);
  }
};

// c's piece = scaled sums (+ bias) (+ addend), in c's type.
template <class In, class Out>
void finish(const Gemm& g, const float* sums, std::int64_t row, std::int64_t column, std::int64_t rows, std::int64_t columns) {
  const In* bias = g.bias ? static_cast<const In*>(g.bias) + column : nullptr;
  const auto* addend = static_cast<const Out*>(g.accumulate ? g.c : g.addend);
  const SumScales scales(g);
  for (std::int64_t r = 0; r < rows; ++r) {
    const f32x16 of_row = splat(scales.a ? scales.of_row(row + r) : g.scale);
    const std::int64_t first = (row + r) * g.c_step() + column;
    Out* to = static_cast<Out*>(g.c) + first;
    const float* from = sums + r * columns;
    for_vectors(0, columns, [&](std::int64_t i, auto n) {
      f32x16 v = load(from + i, n);
      if (scales.a)
        v = v * (of_row * scales.of_columns(column + i, n));
      else if (g.scale != 1)
        v = v * of_row;
      if (bias) v += load(bias + i, n);
      if (addend) v = fma(load(addend + first + i, n), splat(g.accumulate ? 1 : g.addend_scale), v);
      store(to + i, v, n);
    });
  }
}

void finish(const Gemm& g, const float* sums, std::int64_t row, std::int64_t column, std::int64_t rows, std::int64_t columns) {
  with_float_type(g.in, "gemm", [&](auto type) {
    using In = decltype(type);
    (g.out == g.in ? finish<In, In> : finish<In, float>)(g, sums, row, column, rows, columns);
  });
}

void run_pieces(const Context& context, const Gemm& g) {
  const Cut cut = cut_of(g);
  const std::int64_t down = ceil_div(g.M, cut.rows), across = ceil_div(g.N, cut.columns);
  const std::size_t scratch = piece_scratch_bytes(g);
  parallel_workers(down * across, [&](std::int64_t worker, std::int64_t piece) {
    const std::int64_t row = piece / across * cut.rows, column = piece % across * cut.columns;
    const Matmul m = piece_matmul(g, std::min(cut.rows, g.M - row), std::min(cut.columns, g.N - column));
    std::byte* memory = context.workspace.data() + static_cast<std::size_t>(worker) * scratch;
    run_matmul(m,
               {.c = summed_apart(g) ? memory : at(g.c, row * g.c_step() + column, g.out),
                .a = at(g.a, g.a_transposed ? row : row * g.a_step(), g.in),
                .b = at(g.b, g.b_transposed ? column * g.K : column, g.in),
                .bias = m.bias ? at(g.bias, column, g.in) : nullptr,
                .scratch = memory + piece_sums_bytes(g)},
               1);
    summed_apart(g) ? finish(g, reinterpret_cast<const float*>(memory), row, column, m.M, m.N) : join_addend(g, row, column, m.M, m.N);
  });
}

// Widened pieces. K is cut as well: b's block of 384 x 512 floats stays in the second-level cache while a's rows stream past.
// Rows of the buffers are a cache line longer than what they hold: lines a power of two apart would fall into the same few sets of the
// first-level cache, and a product that walks down a column would miss it (measured on Zen 3: weight gradients took 1.2 times as long).
constexpr std::int64_t wide_rows = 256, wide_columns = 384, wide_depth = 512, wide_pad = line / sizeof(float);

struct WideBuffers {
  float* a;
  float* b;
  float* c;
  std::byte* scratch;
};

// Either operand may be stored either way round.
constexpr std::int64_t wide_a = wide_rows * wide_depth + wide_pad * std::max(wide_rows, wide_depth);
constexpr std::int64_t wide_b = wide_depth * wide_columns + wide_pad * std::max(wide_depth, wide_columns);
constexpr std::size_t wide_floats = static_cast<std::size_t>(wide_a + wide_b + wide_rows * wide_columns);

Matmul wide_matmul(const Gemm& g, std::int64_t rows, std::int64_t columns, std::int64_t depth, bool accumulate) {
  return {.M = rows,
          .N = columns,
          .K = depth,
          .a_stride = (g.a_transposed ? rows : depth) + wide_pad,
          .b_stride = (g.b_transposed ? depth : columns) + wide_pad,
          .c_stride = columns,
          .a_transposed = g.a_transposed,
          .b_transposed = g.b_transposed,
          .accumulate = accumulate};
}

std::size_t wide_scratch_bytes(const Gemm& g) {
  std::size_t most = 0;
  for (std::int64_t rows : {std::min(wide_rows, g.M), g.M % wide_rows})
    for (std::int64_t columns : {std::min(wide_columns, g.N), g.N % wide_columns})
      for (std::int64_t depth : {std::min(wide_depth, g.K), g.K % wide_depth}) {
        if (rows == 0 || columns == 0 || depth == 0) continue;
        for (bool accumulate : {false, true})
          most = std::max(most, matmul_scratch_bytes(wide_matmul(g, rows, columns, depth, accumulate), 1));
      }
  return aligned(most);
}

template <class In>
void widen(float* to, const In* from, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const In* f = from + r * stride;
    float* t = to + r * (columns + wide_pad);
    for_vectors(0, columns, [&](std::int64_t i, auto n) { store(t + i, load(f + i, n), n); });
  }
}

/// A piece of an operand (rows, depth), or stored the other way round, from element `first` on.
void widen(float* to, const void* from, DType type, std::int64_t first, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  const auto widen_from = [&](auto element) { widen(to, static_cast<const decltype(element)*>(from) + first, rows, columns, stride); };
  if (size_of(type) == 1)
    with_float8_type(type, "gemm", widen_from);
  else
    with_half_type(type, "gemm", widen_from);
}

/// Codes (rows, depth) from (row, k) on of an operand (., K) times the scales of their blocks: powers of two, so that no product is
/// rounded.
void scale_blocks(float* codes, const Fp8Operand& p, std::int64_t row, std::int64_t k, std::int64_t rows, std::int64_t depth,
                  std::int64_t K) {
  const std::int64_t blocks = ceil_div(K, fp8_block);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t line_of_blocks = p.scaling == Fp8Scaling::square_blocks ? (row + r) / fp8_block : row + r;
    for (std::int64_t i = 0; i < depth; i += fp8_block) {
      const f32x16 scale = splat(p.scales[line_of_blocks * blocks + (k + i) / fp8_block]);
      float* x = codes + r * (depth + wide_pad);
      for_vectors(i, std::min(depth, i + fp8_block), [&](std::int64_t j, auto n) { store(x + j, load(x + j, n) * scale, n); });
    }
  }
}

void run_widened_piece(const Gemm& g, const WideBuffers& w, std::int64_t row, std::int64_t column) {
  const std::int64_t rows = std::min(wide_rows, g.M - row), columns = std::min(wide_columns, g.N - column);
  const DType a = g.fp8 ? g.fp8->a.type : g.in, b = g.fp8 ? g.fp8->b.type : g.in;
  for (std::int64_t k = 0; k < g.K; k += wide_depth) {
    const std::int64_t depth = std::min(wide_depth, g.K - k);
    if (g.a_transposed)
      widen(w.a, g.a, a, k * g.a_step() + row, depth, rows, g.a_step());
    else
      widen(w.a, g.a, a, row * g.a_step() + k, rows, depth, g.a_step());
    if (g.b_transposed)
      widen(w.b, g.b, b, column * g.K + k, columns, depth, g.K);
    else
      widen(w.b, g.b, b, k * g.N + column, depth, columns, g.N);
    if (g.fp8 && has_blocks(g.fp8->a)) scale_blocks(w.a, g.fp8->a, row, k, rows, depth, g.K);
    if (g.fp8 && has_blocks(g.fp8->b)) scale_blocks(w.b, g.fp8->b, column, k, columns, depth, g.K);
    run_matmul(wide_matmul(g, rows, columns, depth, k > 0), {.c = w.c, .a = w.a, .b = w.b, .scratch = w.scratch}, 1);
  }
  finish(g, w.c, row, column, rows, columns);
}

void run_widened(const Context& context, const Gemm& g) {
  std::int64_t down = ceil_div(g.M, wide_rows), across = ceil_div(g.N, wide_columns);
  std::size_t bytes = wide_floats * sizeof(float) + wide_scratch_bytes(g);
  parallel_workers(down * across, [&](std::int64_t worker, std::int64_t piece) {
    std::byte* base = context.workspace.data() + static_cast<std::size_t>(worker) * bytes;
    WideBuffers w{.a = reinterpret_cast<float*>(base), .b = nullptr, .c = nullptr, .scratch = base + wide_floats * sizeof(float)};
    w.b = w.a + wide_a;
    w.c = w.b + wide_b;
    run_widened_piece(g, w, piece / across * wide_rows, piece % across * wide_columns);
  });
}

void run_row(const Gemm& g) {
  with_float_type(g.in, "gemm", [&](auto type) {
    using In = decltype(type);
    parallel_ranges(g.N, row_product::columns, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t column = begin; column < end; column += row_product::columns) {
        const std::int64_t columns = std::min(row_product::columns, end - column);
        float sums[row_product::columns];
        row_product::multiply(sums, static_cast<const In*>(g.a), static_cast<const In*>(g.b) + column * g.K, columns, g.K);
        finish(g, sums, 0, column, 1, columns);
      }
    });
  });
}

bool is_wide(const Gemm& g) { return g.fp8 || is_widened(g.in); }

void check(const Gemm& g) {
  TESSERA_REQUIRE(g.M >= 0 && g.N >= 0 && g.K > 0, "gemm of M={} N={} K={}", g.M, g.N, g.K);
  TESSERA_REQUIRE(is_float(g.in), "gemm of {}", name_of(g.in));
  TESSERA_REQUIRE(g.out == DType::f32 || g.out == g.in, "gemm of {} into {}", name_of(g.in), name_of(g.out));
  TESSERA_REQUIRE(!g.fp8 || has_blocks(g.fp8->a) == has_blocks(g.fp8->b), "a product of codes in blocks and others");
  TESSERA_REQUIRE(g.is_legal(), "gemm adds to c or an addend that lies elsewhere, scales without a bias, and has rows beside each other");
}

}  // namespace

std::size_t gemm_workspace_bytes(const Gemm& g) {
  check(g);
  if (g.M == 0 || g.N == 0) return 0;
  auto workers = static_cast<std::size_t>(threads());
  if (row_product::applies(g)) return 0;
  if (is_wide(g)) return workers * (wide_floats * sizeof(float) + wide_scratch_bytes(g));
  Matmul whole = whole_matmul(g);
  std::size_t pieces = workers * piece_scratch_bytes(g);
  return std::max({pieces, aligned(matmul_scratch_bytes(whole, threads())), aligned(matmul_scratch_bytes(whole, 1))});
}

void gemm(const Context& context, const Gemm& g) {
  check(g);
  if (g.M == 0 || g.N == 0) return;
  if (row_product::applies(g)) return run_row(g);
  if (is_wide(g)) {
    TESSERA_REQUIRE(!g.b_packed, "gemm_packed_bytes said that packing brings nothing here");
    return run_widened(context, g);
  }
  if (context.reproducible || summed_apart(g)) return run_pieces(context, g);
  run_matmul(whole_matmul(g), {.c = g.c, .a = g.a, .b = g.b, .bias = g.bias, .scratch = context.workspace.data()}, threads());
  const std::int64_t rows = std::max<std::int64_t>(1, 16384 / g.N);
  if (g.addend) parallel_ranges(g.M, rows, [&](std::int64_t begin, std::int64_t end) { join_addend(g, begin, 0, end - begin, g.N); });
}

std::size_t gemm_packed_bytes(const Gemm& g) {
  if (g.fp8) return packed_codes_bytes(g);
  check(g);
  return is_widened(g.in) || g.a_transposed ? 0 : matmul_packed_bytes(whole_matmul(g));
}

void gemm_pack_b(const Context& context, void* packed, const Gemm& g) {
  if (g.fp8) return host::fp8_quantize(context, quantize_b(packed, g));
  matmul_pack(whole_matmul(g), packed, g.b, threads());
}

}  // namespace tessera::kernels::host
