// What texts call over tensor-parallel ranks (Megatron-LM, arXiv:1909.08053; rows of the stream are shared as in Korthikanti et al.,
// arXiv:2205.05198): products that read the stream have a part of their outputs on each rank and gather its rows before, products that
// write it have a part of their inputs and sum over ranks after.
#include "kernels/cross_entropy/softmax_slice.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "model/recorder.hpp"

namespace tessera {
namespace {

using enum Access;

constexpr std::int64_t slice_numbers = 3;  // a row, of SoftmaxSliceSums

}  // namespace

void Recorder::exchange(CollectiveKind kind, const std::string& name, Value to, Value from, std::int64_t count, DType dtype) {
  for (const Value value : {to, from}) segment_.values[static_cast<std::size_t>(value.id)].exchanged = true;
  call({.name = name,
        .touches = {{to, write}, {from, read}},
        .run = {},
        .exchange = Exchange{.kind = kind, .count = count, .dtype = dtype}});
}

Value Recorder::whole_of(Value part, const char* name, std::int64_t N) { return s.tp == 1 ? part : remade(name, {s.tokens(), N}); }

void Recorder::gather_rows(Value whole, Value part) {
  if (s.tp == 1) return;
  const std::int64_t elements = segment_.at(part).bytes / s.bytes_of(1);
  exchange(CollectiveKind::all_gather, "gather " + name_of(part), whole, part, elements, s.dtype);
}

void Recorder::scatter_rows(Value part, Value sums) {
  if (s.tp == 1) return;
  const std::int64_t elements = segment_.at(part).bytes / s.bytes_of(1);
  exchange(CollectiveKind::reduce_scatter, "reduce " + name_of(sums), part, sums, elements, s.dtype);
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
  exchange(CollectiveKind::all_gather, "gather slice_sums", all, mine, rows.count * slice_numbers, DType::i64);
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
