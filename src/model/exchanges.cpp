// What texts call over tensor-parallel ranks (Megatron-LM, arXiv:1909.08053; rows of the stream are shared as in Korthikanti et al.,
// arXiv:2205.05198): products that read the stream have a part of their outputs on each rank and gather its rows before, products that
// write it have a part of their inputs and sum over ranks after. And over context-parallel ranks (Jacobs et al., DeepSpeed Ulysses,
// arXiv:2309.14509), which exchange tokens for heads before attention and heads for tokens after it.
#include "kernels/cross_entropy/softmax_slice.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/head_blocks/head_blocks.hpp"
#include "model/recorder.hpp"

namespace tessera {
namespace {

using enum Access;

constexpr std::int64_t slice_numbers = 3;  // a row, of SoftmaxSliceSums

kernels::HeadBlocks head_blocks(const ModelShape& s, std::int64_t H, std::int64_t G) {
  return {.B = s.B, .T = s.T / s.cp, .N = s.cp, .H = H, .G = G, .D = s.D, .dtype = s.dtype};
}

}  // namespace

void Recorder::exchange(const Exchange& exchange, const std::string& name, Value to, Value from) {
  for (const Value value : {to, from}) segment_.values[static_cast<std::size_t>(value.id)].exchanged = true;
  call({.name = name, .touches = {{to, write}, {from, read}}, .run = {}, .exchange = exchange});
}

Value Recorder::whole_of(Value part, const char* name, std::int64_t N) { return s.tp == 1 ? part : remade(name, {s.tokens(), N}); }

void Recorder::gather_rows(Value whole, Value part) {
  if (s.tp == 1) return;
  const std::int64_t elements = segment_.at(part).bytes / s.bytes_of(1);
  exchange({.kind = CollectiveKind::all_gather, .count = elements, .dtype = s.dtype}, "gather " + name_of(part), whole, part);
}

void Recorder::scatter_rows(Value part, Value sums) {
  if (s.tp == 1) return;
  const std::int64_t elements = segment_.at(part).bytes / s.bytes_of(1);
  exchange({.kind = CollectiveKind::reduce_scatter, .count = elements, .dtype = s.dtype}, "reduce " + name_of(sums), part, sums);
}

void Recorder::will_need(Value whole) {
  if (s.tp > 1) call({.name = "will_need " + name_of(whole), .touches = {{whole, read}}, .run = {}});
}

void Recorder::linear_to_stream(Value out, Value x, const std::string& w, std::int64_t N, std::int64_t K, Value residual) {
  if (s.tp == 1) return linear(out, x, w, N, K, {.add = residual});
  const Value sums = value("sums", {s.tokens(), N}), met = value("met", {s.rows(), N});
  linear(sums, x, w, N, K);
  scatter_rows(met, sums);
  call({.name = "add", .touches = {{out, write}, {met, read}, {residual, read}}, .run = [=, s = s](const At& at) {
          kernels::add(at.context, at.get(out), at.get(met), at.get(residual), s.rows() * N, s.dtype);
        }});
}

void Recorder::linear_backward_to_part(Value d_part, Value d_y, Value x, const std::string& w, std::int64_t N, std::int64_t K) {
  if (s.tp == 1) return linear_backward(d_part, d_y, x, w, N, K);
  const Value sums = value("d_sums", {s.tokens(), K});
  input_gradient(sums, d_y, w, N, K);
  scatter_rows(d_part, sums);
  weight_gradient(d_y, x, w, N, K);
}

void Recorder::turn_blocks(Value to, Value from, std::int64_t W) {
  exchange({.kind = CollectiveKind::all_to_all, .axis = Axis::cp, .count = s.T / s.cp * W, .dtype = s.dtype, .times = s.B},
           "exchange " + name_of(from), to, from);
}

void Recorder::rows_to_heads(Value of_heads, Value rows, std::int64_t H, std::int64_t G) {
  if (s.cp == 1) return;
  const std::int64_t W = width_of_rank(H, G);
  const Value blocks = value((name_of(rows) + "_blocks").c_str(), {s.tokens(), s.cp * W});
  call({.name = "rows_to_head_blocks", .touches = {{blocks, write}, {rows, read}}, .run = [=, p = head_blocks(s, H, G)](const At& at) {
          auto here = p;
          here.to = at.get(blocks), here.from = at.get(rows);
          kernels::rows_to_head_blocks(at.context, here);
        }});
  // Blocks of a sequence come one rank's tokens after the other's, which is the order of its rows.
  turn_blocks(of_heads, blocks, W);
}

void Recorder::heads_to_rows(Value rows, Value of_heads, std::int64_t H, std::int64_t G) {
  if (s.cp == 1) return;
  const std::int64_t W = width_of_rank(H, G);
  const Value blocks = value((name_of(rows) + "_blocks").c_str(), {s.tokens(), s.cp * W});
  turn_blocks(blocks, of_heads, W);
  call({.name = "head_blocks_to_rows", .touches = {{rows, write}, {blocks, read}}, .run = [=, p = head_blocks(s, H, G)](const At& at) {
          auto here = p;
          here.to = at.get(rows), here.from = at.get(blocks);
          kernels::head_blocks_to_rows(at.context, here);
        }});
}

void Recorder::linear_backward_to_heads(Value d_heads, Value d_x, Value d_y, Value x, const std::string& w, std::int64_t N,
                                        std::int64_t K) {
  if (s.cp == 1) return linear_backward(d_x, d_y, x, w, N, K);
  input_gradient(d_x, d_y, w, N, K);
  rows_to_heads(d_heads, d_x, K / s.D, 0);
  weight_gradient(d_y, x, w, N, K);
}

void Recorder::softmax_loss_of_slice(Value losses, Value d_logits, Value logits, const Rows& rows) {
  const Value ids = targets();
  if (!slice_sums_) {  // doubles; the first rows are the most at a time
    slice_sums_ = value("slice_sums", {rows.count, slice_numbers}, DType::i64);
    all_sums_ = value("all_sums", {s.tp, rows.count, slice_numbers}, DType::i64);
  }
  const Value mine = slice_sums_, all = all_sums_;
  const Range vocabulary = s.vocabulary();
  call({.name = "softmax_slice_sums", .touches = {{mine, write}, {logits, read}, {ids, read}}, .run = [=](const At& at) {
          kernels::softmax_slice_sums(at.context, {.sums = at.get<double>(mine),
                                                   .logits = at.get<float>(logits),
                                                   .targets = at.get<std::int32_t>(ids) + rows.first,
                                                   .rows = rows.count,
                                                   .V = vocabulary.size(),
                                                   .first = vocabulary.begin});
        }});
  exchange({.kind = CollectiveKind::all_gather, .count = rows.count * slice_numbers, .dtype = DType::i64}, "gather slice_sums", all, mine);
  std::vector<Touch> touches = {{losses, write}, {logits, d_logits == logits ? Access::add : read}, {all, read}, {ids, read}};
  if (d_logits && d_logits != logits) touches.push_back({d_logits, write});
  call({.name = "softmax_slice_loss", .touches = std::move(touches), .run = [=, s = s](const At& at) {
          kernels::softmax_slice_loss(at.context, {.losses = at.get<float>(losses) + rows.first,
                                                   .logits = at.get<float>(logits),
                                                   .d_logits = at.get(d_logits),
                                                   .sums = at.get<double>(all),
                                                   .targets = at.get<std::int32_t>(ids) + rows.first,
                                                   .grad_scale = at.grad_scale,
                                                   .rows = rows.count,
                                                   .V = vocabulary.size(),
                                                   .first = vocabulary.begin,
                                                   .slices = s.tp,
                                                   .dtype = s.dtype});
        }});
}

}  // namespace tessera
