#include "kernels/elementwise/elementwise.hpp"

#include "kernels/vector/row_blocks.hpp"

namespace tessera::kernels::host {
namespace {

constexpr std::int64_t grain = 16384;

template <bool Stream, class Out, class In>
void cast_range(Out* out, const In* x, std::int64_t begin, std::int64_t end) {
  for_vectors(begin, end, [&](std::int64_t i, auto n) { store<Stream>(out + i, load(x + i, n), n); });
  if constexpr (Stream) stream_fence();
}

void add_integers(std::int64_t* out, const std::int64_t* x, const std::int64_t* y, std::int64_t n) {
  parallel_ranges(n, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      out[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(x[i]) + static_cast<std::uint64_t>(y[i]));
  });
}

template <class T>
void partial_column_sums(float* partial, const T* x, const RowBlocks& blocks, std::int64_t N) {
  parallel_ranges(blocks.count, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b) {
      float* sum = partial + b * blocks.stride(N);
      std::fill_n(sum, blocks.stride(N), 0.0f);
      for (std::int64_t m = blocks.begin(b); m < blocks.end(b); ++m) {
        for_vectors(0, N, [&](std::int64_t j, auto n) { store(sum + j, load(sum + j) + load_any(x + m * N + j, n)); });
      }
    }
  });
}

}  // namespace

void add(const Context&, void* out, const void* x, const void* y, std::int64_t n, DType dtype) {
  if (dtype == DType::i64)
    return add_integers(static_cast<std::int64_t*>(out), static_cast<const std::int64_t*>(x), static_cast<const std::int64_t*>(y), n);
  with_float_type(dtype, "add", [&](auto type) {
    using T = decltype(type);
    T* o = static_cast<T*>(out);
    const T *a = static_cast<const T*>(x), *b = static_cast<const T*>(y);
    parallel_ranges(n, grain, [&](std::int64_t begin, std::int64_t end) {
      for_vectors(begin, end,
                  [&](std::int64_t i, auto count) { store_any(o + i, load_any(a + i, count) + load_any(b + i, count), count); });
    });
  });
}

void add_scaled(const Context&, const AddScaled& p) {
  with_float_type(p.dtype, "add_scaled", [&](auto type) {
    using T = decltype(type);
    T* out = static_cast<T*>(p.out);
    const T *x = static_cast<const T*>(p.x), *y = static_cast<const T*>(p.y);
    const f32x16 scale = splat(p.scale);
    parallel_ranges(p.n, grain, [&](std::int64_t begin, std::int64_t end) {
      if (x) {
        for_vectors(begin, end, [&](std::int64_t i, auto count) {
          store_any(out + i, fma(scale, load_any(y + i, count), load_any(x + i, count)), count);
        });
      } else {
        for_vectors(begin, end, [&](std::int64_t i, auto count) { store_any(out + i, scale * load_any(y + i, count), count); });
      }
    });
  });
}

void sum_in_order(const Context&, const SumInOrder& p) {
  with_float_type(p.dtype, "sum_in_order", [&](auto type) {
    using T = decltype(type);
    T* out = static_cast<T*>(p.out);
    const T* parts = static_cast<const T*>(p.parts);
    parallel_ranges(p.n, grain, [&](std::int64_t begin, std::int64_t end) {
      for_vectors(begin, end, [&](std::int64_t i, auto count) {
        f32x16 sum = load_any(parts + i, count);
        for (std::int64_t k = 1; k < p.P; ++k) sum = sum + load_any(parts + k * p.n + i, count);
        store_any(out + i, p.accumulate ? sum + load_any(out + i, count) : sum, count);
      });
    });
  });
}

void column_sums(const Context& context, const ColumnSums& p) {
  if (p.M == 0 || p.N == 0) return;
  std::size_t needed = host::column_sums_workspace_bytes(p);
  TESSERA_REQUIRE(context.workspace.size() >= needed, "column_sums needs {} bytes of workspace, has {}", needed, context.workspace.size());
  RowBlocks blocks(p.M);
  float* partial = reinterpret_cast<float*>(context.workspace.data());  // (blocks,N)
  with_float_type(p.dtype, "column_sums", [&](auto type) {
    using T = decltype(type);
    partial_column_sums(partial, static_cast<const T*>(p.x), blocks, p.N);
    add_partial_sums<T>(p.sum, partial, blocks, p.N);
  });
}

std::size_t column_sums_workspace_bytes(const ColumnSums& p) { return RowBlocks(p.M).bytes(p.N); }

void cast(const Context&, void* out, DType out_dtype, const void* x, DType x_dtype, std::int64_t n) {
  bool stream = worth_streaming(out, n * static_cast<std::int64_t>(size_of(out_dtype)), 64);
  with_float_type(out_dtype, "cast", [&](auto out_type) {
    with_float_type(x_dtype, "cast", [&](auto in_type) {
      using Out = decltype(out_type);
      using In = decltype(in_type);
      auto* range = stream ? cast_range<true, Out, In> : cast_range<false, Out, In>;
      parallel_ranges(n, grain,
                      [&](std::int64_t begin, std::int64_t end) { range(static_cast<Out*>(out), static_cast<const In*>(x), begin, end); });
    });
  });
}

void copy(const Context&, void* to, const void* from, std::size_t bytes) {
  parallel_ranges(static_cast<std::int64_t>(bytes), 1 << 20, [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin, static_cast<std::size_t>(end - begin));
  });
}

void copy_rows(const Context&, const CopyRows& p) {
  if (p.bytes == 0) return;
  parallel_ranges(p.rows, std::max<std::int64_t>(1, (1 << 20) / p.bytes), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      std::memcpy(static_cast<std::byte*>(p.to) + r * p.to_stride, static_cast<const std::byte*>(p.from) + r * p.from_stride,
                  static_cast<std::size_t>(p.bytes));
  });
}

void fill_zero(const Context&, void* out, std::size_t bytes) {
  parallel_ranges(static_cast<std::int64_t>(bytes), 65536, [&](std::int64_t begin, std::int64_t end) {
    std::memset(static_cast<std::byte*>(out) + begin, 0, static_cast<std::size_t>(end - begin));
  });
}

}  // namespace tessera::kernels::host
