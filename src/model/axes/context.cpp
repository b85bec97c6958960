#include "model/axes/context.hpp"

#include "kernels/head_blocks/head_blocks.hpp"
#include "model/axes/ring.hpp"
#include "model/calls/attention.hpp"
#include "model/calls/products.hpp"

namespace tessera {
namespace {

using enum Access;

kernels::HeadBlocks head_blocks(const ModelShape& s, HeadRow row) {
  const Attention& a = s.attention;
  kernels::HeadBlocks p{.B = s.B, .T = s.T / s.cp, .N = s.cp, .H = a.H, .G = a.G, .D = a.D, .Dv = a.Dv, .dtype = s.dtype};
  if (row == HeadRow::context) p.G = 0, p.D = a.Dv;
  return p;
}

/// Blocks (B, cp, T / cp, W) of a rank each are turned: to (B, cp, T / cp, W) has those of all ranks.
void turn_blocks(Recorder& r, Value to, Value from, std::int64_t W) {
  const ModelShape& s = r.s;
  r.exchange({.kind = CollectiveKind::all_to_all, .axis = Axis::cp, .count = s.T / s.cp * W, .dtype = s.dtype, .times = s.B},
             "exchange " + r.name_of(from), to, from);
}

/// Elements of a rank's row.
std::int64_t width_of_rank(const Recorder& r, HeadRow row) {
  const Attention& own = r.inside.attention;
  return row == HeadRow::qkv ? own.qkv_width() : own.context_width();
}

}  // namespace

Value rows_of(Recorder& r, Value of_heads, const char* name, std::int64_t N) {
  return r.s.exchanges_heads() ? r.value(name, {r.s.tokens(), N}) : of_heads;
}

Value heads_of(Recorder& r, Value rows, const char* name, std::int64_t N) {
  return r.s.exchanges_heads() ? r.value(name, {r.s.B * r.s.T, N / r.s.cp}) : rows;
}

void rows_to_heads(Recorder& r, Value of_heads, Value rows, HeadRow row) {
  const ModelShape& s = r.s;
  if (!s.exchanges_heads()) return;
  const std::int64_t W = width_of_rank(r, row);
  const Value blocks = r.value((r.name_of(rows) + "_blocks"), {s.tokens(), s.cp * W});
  r.call({.name = "rows_to_head_blocks", .touches = {{blocks, write}, {rows, read}}, .run = [=, p = head_blocks(s, row)](const At& at) {
            auto here = p;
            here.to = at.get(blocks), here.from = at.get(rows);
            kernels::rows_to_head_blocks(at.context, here);
          }});
  // Blocks of a sequence come one rank's tokens after the other's, which is the order of its rows.
  turn_blocks(r, of_heads, blocks, W);
}

void heads_to_rows(Recorder& r, Value rows, Value of_heads, HeadRow row) {
  const ModelShape& s = r.s;
  if (!s.exchanges_heads()) return;
  const std::int64_t W = width_of_rank(r, row);
  const Value blocks = r.value((r.name_of(rows) + "_blocks"), {s.tokens(), s.cp * W});
  turn_blocks(r, blocks, of_heads, W);
  r.call({.name = "head_blocks_to_rows", .touches = {{rows, write}, {blocks, read}}, .run = [=, p = head_blocks(s, row)](const At& at) {
            auto here = p;
            here.to = at.get(rows), here.from = at.get(blocks);
            kernels::head_blocks_to_rows(at.context, here);
          }});
}

void linear_backward_to_heads(Recorder& r, Value d_heads, Value d_x, Value d_y, Value x, const std::string& w, std::int64_t N,
                              std::int64_t K) {
  const ModelShape& s = r.s;
  if (!s.exchanges_heads()) return linear_backward(r, d_x, d_y, x, w, N, K);
  input_gradient(r, d_x, d_y, w, N, K);
  rows_to_heads(r, d_heads, d_x, HeadRow::context);
  weight_gradient(r, d_y, x, w, N, K);
}

void attention(Recorder& r, Value out, Value lse, Value qkv, const std::string& sinks) {
  const ModelShape& s = r.s;
  if (s.feed == Feed::token) return attention_decode(r, out, qkv, sinks);
  if (s.feed == Feed::prompt)  // its tokens see each other alone
    fill_caches(r, attention_caches(s), qkv, s.attention.H * s.attention.D, s.attention.qkv_width());
  s.ring ? ring_attention(r, out, lse, qkv) : own_attention(r, out, lse, qkv);
  if (!sinks.empty()) add_sinks(r, out, lse, sinks);
}

void attention_backward(Recorder& r, Value d_qkv, Value d_out, Value qkv, Value out, Value lse) {
  const ModelShape& s = r.s;
  s.ring ? ring_attention_backward(r, d_qkv, d_out, qkv, out, lse) : own_attention_backward(r, d_qkv, d_out, qkv, out, lse);
}

}  // namespace tessera
