// Our own attention on a GPU: checks, workspace, the terms that both backward passes share, and the choice by element type.
#include "kernels/attention/attention.hpp"

#include "kernels/attention/attention_kernels.hpp"
#include "kernels/cuda/devices.hpp"
#include "kernels/cuda/vector.hpp"

namespace tessera::kernels::cuda {
namespace {
using namespace tessera::cuda;

constexpr int term_threads = 128;

// Lanes of a group of `lanes` share a row, 8 elements each; a block takes a few rows of one head. Bound by memory: reads out and d_out
// once. Not yet measured.
template <class T>
__global__ void __launch_bounds__(term_threads) row_terms(RowTerms terms, BackwardPass a, int lanes, bool wide) {
  const int queries = static_cast<int>(a.queries), D = static_cast<int>(a.shape.Dv), place = static_cast<int>(threadIdx.x) % lanes;
  const int row = static_cast<int>(blockIdx.x) * (term_threads / lanes) + static_cast<int>(threadIdx.x) / lanes;
  const std::int64_t head = blockIdx.y, batch = blockIdx.z;
  float delta = 0;
  if (row < queries && 8 * place < D) {
    const std::int64_t at = ((batch * a.shape.T + row) * a.shape.H + head) * D + 8 * place;
    float out[8], d_out[8];
    load_8(out, static_cast<const T*>(a.out) + at, D - 8 * place, wide);
    load_8(d_out, static_cast<const T*>(a.d_out) + at, D - 8 * place, wide);
#pragma unroll
    for (int i = 0; i < 8; ++i) delta += out[i] * d_out[i];
  }
  for (int bits = lanes / 2; bits > 0; bits /= 2) delta += __shfl_xor_sync(all_lanes, delta, bits);
  if (place != 0 || row >= terms.rows) return;
  const std::int64_t of_head = batch * a.shape.H + head;
  terms.delta[of_head * terms.rows + row] = delta;
  terms.lse_base2[of_head * terms.rows + row] = row < queries ? a.lse[of_head * a.shape.T + row] * log2_e : 0;
}

template <class T>
void launch_row_terms(const Context& context, const BackwardPass& a, const RowTerms& terms) {
  const AttentionShape& s = a.shape;
  const int lanes = lanes_of_row(s.Dv);
  const auto address = reinterpret_cast<std::uintptr_t>(a.out) | reinterpret_cast<std::uintptr_t>(a.d_out);
  const dim3 grid(static_cast<unsigned>(ceil_div(terms.rows, term_threads / lanes)), static_cast<unsigned>(s.H),
                  static_cast<unsigned>(s.B));
  launch(stream_of(context), grid, term_threads, 0, row_terms<T>, terms, a, lanes, s.Dv % 8 == 0 && address % 16 == 0);
}

template <class Pass>
bool takes_warpgroup(const Pass& a) {
  return warpgroup_head_dim(a.shape.D) && a.is_uniform() && is_hopper();
}

}  // namespace

void native_attention_forward(const Context& context, const ForwardPass& a) {
  require_rows(a.rows, a.shape);
  if (a.shape.dtype == DType::f32)
    attention_forward_fp32(context, a);
  else if (takes_warpgroup(a))
    attention_forward_warpgroup(context, a);
  else
    attention_forward_half(context, a);
}

void native_attention_backward(const Context& context, const BackwardPass& a) {
  require_rows(a.rows, a.shape), require_rows(a.d_rows, a.shape);
  const AttentionShape& s = a.shape;
  const std::int64_t rows = padded_rows(a.queries);
  auto* base = reinterpret_cast<float*>(context.workspace.data());
  const std::int64_t count = s.B * s.H * rows;
  const RowTerms terms{.delta = base, .lse_base2 = base + count, .rows = rows, .parts = has_parts(s) ? base + 2 * count : nullptr};
  with_float_type(s.dtype, [&](auto type) { launch_row_terms<decltype(type)>(context, a, terms); });
  if (s.dtype == DType::f32)
    attention_backward_fp32(context, a, terms);
  else if (takes_warpgroup(a))
    attention_backward_warpgroup(context, a, terms);
  else
    attention_backward_half(context, a, terms);
}

}  // namespace tessera::kernels::cuda
