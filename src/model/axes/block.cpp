#include "model/axes/block.hpp"

#include "kernels/elementwise/elementwise.hpp"
#include "model/calls/norms.hpp"

namespace tessera {
namespace {

using enum Access;

/// out = x + scale y, where x is there.
void add_scaled(Recorder& r, Value out, Value x, Value y) {
  const ModelShape& s = r.s;
  std::vector<Touch> touches = {{out, x == out ? Access::add : write}, {y, read}};
  if (x && x != out) touches.push_back({x, read});
  r.call({.name = "add_scaled " + r.name_of(y), .touches = std::move(touches), .run = [=, s = s](const At& at) {
            kernels::add_scaled(
                at.context,
                {.out = at.get(out), .x = at.get(x), .y = at.get(y), .scale = s.block.scale, .n = s.rows() * s.C, .dtype = s.dtype});
          }});
}

}  // namespace

BlockEnds block_ends(Recorder& r) {
  const ModelShape& s = r.s;
  BlockEnds ends;
  ends.input = ends.x = r.stream_in();
  if (s.block.norms_input()) ends.input = r.remade("normed", {s.rows(), s.C}), ends.rstd = norm_rows(r, "rstd");
  if (!s.block.joins_at_once()) ends.made = r.value("made", {s.rows(), s.C});
  if (s.block.norms_output()) ends.made_rstd = norm_rows(r, "made_rstd");
  return ends;
}

void enter_block(Recorder& r, const BlockEnds& ends, const std::string& w) {
  if (r.s.block.norms_input()) norm(r, ends.input, ends.rstd, ends.x, w + "norm");
}

void leave_block(Recorder& r, const BlockEnds& ends, const std::string& w, const std::vector<LeavingProduct>& leaving) {
  if (r.s.block.joins_at_once()) return linear_to_stream(r, r.stream_out(), leaving, ends.x);
  linear_to_stream(r, ends.made, leaving, {});
  join_stream(r, ends, w);
}

void join_stream(Recorder& r, const BlockEnds& ends, const std::string& w) {
  r.s.block.norms_output() ? norm(r, r.stream_out(), ends.made_rstd, ends.made, w + "post_norm", ends.x)
                           : add_scaled(r, r.stream_out(), ends.x, ends.made);
}

Value enter_block_backward(Recorder& r, const BlockEnds& ends, const std::string& w) {
  const Value d_stream = r.d_stream();
  if (r.s.block.joins_at_once()) return d_stream;
  const Value d_made = r.value("d_made", {r.s.rows(), r.s.C});
  r.s.block.norms_output() ? norm_backward(r, d_made, d_stream, ends.made, w + "post_norm", ends.made_rstd, false)
                           : add_scaled(r, d_made, {}, d_stream);
  return d_made;
}

Value gradient_of_input(Recorder& r, const BlockEnds& ends) {
  const bool in_place = r.s.tp == 1 && ends.input != ends.x;
  return in_place ? ends.input : r.value("d_normed", {r.s.rows(), r.s.C});
}

void leave_block_backward(Recorder& r, const BlockEnds& ends, const std::string& w, Value d_input) {
  const Value d_stream = r.d_stream();
  if (r.s.block.norms_input()) return norm_backward(r, d_stream, d_input, ends.x, w + "norm", ends.rstd, true);
  r.call({.name = "add d_normed", .touches = {{d_stream, Access::add}, {d_input, read}}, .run = [=, s = r.s](const At& at) {
            kernels::add(at.context, at.get(d_stream), at.get(d_stream), at.get(d_input), s.rows() * s.C, s.dtype);
          }});
}

}  // namespace tessera
