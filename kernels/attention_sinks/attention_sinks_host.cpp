// Bound by memory, each operand read or written once: shares are taken of 16 tokens at once, for some heads whose elements lie together.
// The next token's are asked for meanwhile.
#include "kernels/attention_sinks/attention_sinks.hpp"

#include "base/check.hpp"
#include "kernels/attention_sinks/formulas.hpp"
#include "kernels/vector/row_blocks.hpp"

namespace tessera::kernels::host {
namespace {

constexpr std::int64_t sinks_together = 16;  // heads: what they have of 16 tokens stays in a cache of the first level

template <class Call>
void require_heads(const char* op, const Call& p) {
  TESSERA_REQUIRE(p.B >= 0 && p.T >= 0 && p.H >= 0 && p.D >= 0, "{} of B={} T={} H={} D={}", op, p.B, p.T, p.H, p.D);
}

/// Rows from `row` on that lie within 16, in one sequence and before `end`.
int tokens_from(std::int64_t row, std::int64_t end, std::int64_t T) {
  return static_cast<int>(std::min({std::int64_t{lanes}, end - row, T - row % T}));
}

/// Where row `row` of lse (B, H, T) has head h.
template <class Call>
std::int64_t term_of(const Call& p, std::int64_t row, std::int64_t h) {
  return (row / p.T * p.H + h) * p.T + row % p.T;
}

template <class T>
void join_tokens(const AttentionSinksForward& p, std::int64_t row, int tokens) {
  const T* sinks = static_cast<const T*>(p.sinks);
  float shares[sinks_together][lanes];
  for (std::int64_t first = 0; first < p.H; first += sinks_together) {
    const std::int64_t heads = std::min(sinks_together, p.H - first);
    for (std::int64_t h = 0; h < heads; ++h) {
      float* lse = p.lse + term_of(p, row, first + h);
      const auto joined = sinks::join(load(lse, tokens), splat(static_cast<float>(sinks[first + h])));
      store(lse, joined.lse, tokens);
      store(shares[h], joined.keys);
    }
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t ahead = row + t + 1 < p.B * p.T ? p.H * p.D : 0;
      for (std::int64_t h = 0; h < heads; ++h) {
        T* out = static_cast<T*>(p.out) + ((row + t) * p.H + first + h) * p.D;
        if (const float share = shares[h][t]; share == 0)
          std::fill_n(out, p.D, T{});
        else
          for_vectors(0, p.D, [&](std::int64_t d, auto n) {
            prefetch(out + ahead + d);
            store_any(out + d, load_any(out + d, n) * share, n);
          });
      }
    }
  }
}

/// partial (H) = the gradient of rows begin .. end - 1. A lane of `sums` has every 16th feature: lanes are added up once a block.
template <class T>
void sink_gradients(const AttentionSinksBackward& p, float* partial, std::int64_t begin, std::int64_t end) {
  const T *d_out = static_cast<const T*>(p.d_out), *out = static_cast<const T*>(p.out), *sinks = static_cast<const T*>(p.sinks);
  for (std::int64_t first = 0; first < p.H; first += sinks_together) {
    const std::int64_t heads = std::min(sinks_together, p.H - first);
    f32x16 sums[sinks_together] = {};
    float shares[sinks_together][lanes];
    int tokens = 0;
    for (std::int64_t row = begin; row < end; row += tokens) {
      tokens = tokens_from(row, end, p.T);
      for (std::int64_t h = 0; h < heads; ++h) {
        const f32x16 lse = load(p.lse + term_of(p, row, first + h), tokens);
        store(shares[h], sinks::of_sink(lse, splat(static_cast<float>(sinks[first + h]))));
      }
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int64_t ahead = row + t + 1 < end ? p.H * p.D : 0;
        for (std::int64_t h = 0; h < heads; ++h) {
          const std::int64_t at = ((row + t) * p.H + first + h) * p.D;
          f32x16 products{};
          for_vectors(at, at + p.D, [&](std::int64_t i, auto n) {
            prefetch(d_out + i + ahead), prefetch(out + i + ahead);
            products = fma(load_any(d_out + i, n), load_any(out + i, n), products);
          });
          sums[h] = fma(splat(shares[h][t]), products, sums[h]);
        }
      }
    }
    for (std::int64_t h = 0; h < heads; ++h) partial[first + h] = -horizontal_sum(in_order<T>(sums[h]));
  }
}

}  // namespace

void attention_sinks_forward(const Context&, const AttentionSinksForward& p) {
  require_heads("attention_sinks_forward", p);
  if (p.H == 0) return;
  const std::int64_t pieces = ceil_div(p.T, std::int64_t{lanes});
  with_float_type(p.dtype, "attention_sinks_forward", [&](auto type) {
    parallel_ranges(p.B * pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = i / pieces * p.T + i % pieces * lanes;
        join_tokens<decltype(type)>(p, row, tokens_from(row, p.B * p.T, p.T));
      }
    });
  });
}

void attention_sinks_backward(const Context& context, const AttentionSinksBackward& p) {
  require_heads("attention_sinks_backward", p);
  if (p.B * p.T == 0 || p.H == 0) return;
  const std::size_t needed = host::attention_sinks_backward_workspace_bytes(p);
  TESSERA_REQUIRE(context.workspace.size() >= needed, "attention_sinks_backward needs {} bytes of workspace, has {}", needed,
                  context.workspace.size());
  float* partial = reinterpret_cast<float*>(context.workspace.data());  // (blocks, stride(H))
  const RowBlocks blocks(p.B * p.T);
  with_float_type(p.dtype, "attention_sinks_backward", [&](auto type) {
    parallel_ranges(blocks.count, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t b = first; b < last; ++b) {
        float* of_block = partial + b * blocks.stride(p.H);
        std::fill_n(of_block, blocks.stride(p.H), 0.0f);
        sink_gradients<decltype(type)>(p, of_block, blocks.begin(b), blocks.end(b));
      }
    });
  });
  add_partial_sums<float>(p.d_sinks, partial, blocks, p.H);
}

std::size_t attention_sinks_backward_workspace_bytes(const AttentionSinksBackward& p) { return RowBlocks(p.B * p.T).bytes(p.H); }

}  // namespace tessera::kernels::host
