#include "model/axes/wide_qk_norm.hpp"

#include "kernels/wide_qk_norm/wide_qk_norm.hpp"
#include "model/calls/parts.hpp"

namespace tessera {
namespace {

using enum Access;

kernels::WideQkShape wide_shape(const ModelShape& s) {
  return {.M = s.tokens(),
          .Q = s.attention.H * s.attention.D,
          .K = s.attention.G * s.attention.D / s.keys_shared,
          .stride = s.own_qkv_width(),
          .parts = s.tp,
          .dtype = s.dtype,
          .eps = s.block.norm_eps,
          .offset = s.block.norm_offset};
}

/// Where this rank's sums lie before those of all are gathered.
Value own_sums(Recorder& r, Value all, const char* name) { return r.s.tp == 1 ? all : r.value(name, {r.s.tokens(), 2}, DType::f32); }

void gather_sums(Recorder& r, Value all, Value mine) {
  if (r.s.tp == 1) return;
  r.exchange({.kind = CollectiveKind::all_gather, .count = r.s.tokens() * 2, .dtype = DType::f32}, "gather " + r.name_of(mine), all, mine);
}

/// Bytes of so many passes over the query and key features of rows.
MemoryWork passes_over_features(const ModelShape& s, int passes) {
  const kernels::WideQkShape shape = wide_shape(s);
  return {static_cast<double>(passes) * static_cast<double>(s.bytes_of(shape.M * (shape.Q + shape.K)))};
}

}  // namespace

void wide_qk_norm(Recorder& r, Value out, Value sums, Value x, const std::string& q_norm, const std::string& k_norm) {
  const ModelShape& s = r.s;
  const Value mine = own_sums(r, sums, "own_qk_sums"), q = r.weight(q_norm), k = r.weight(k_norm);
  const kernels::WideQkShape shape = wide_shape(s);
  r.call({.name = "wide_qk_sums", .touches = {{mine, write}, {x, read}}, .work = passes_over_features(s, 1), .run = [=](const At& at) {
            kernels::wide_qk_sums(at.context, {.sums = at.get<float>(mine), .x = at.get(x), .shape = shape});
          }});
  gather_sums(r, sums, mine);
  r.call(
      {.name = "wide_qk_norm", .touches = {{out, write}, {x, read}, {sums, read}, {q, read}, {k, read}}, .run = [=](const At& at) {
         kernels::wide_qk_norm(
             at.context,
             {.out = at.get(out), .x = at.get(x), .sums = at.get<float>(sums), .q_norm = at.get(q), .k_norm = at.get(k), .shape = shape});
       }});
}

void wide_qk_norm_backward(Recorder& r, Value d, Value x, Value sums, const std::string& q_norm, const std::string& k_norm) {
  const ModelShape& s = r.s;
  const Value dots = r.value("qk_dots", {s.tp, s.tokens(), 2}, DType::f32), mine = own_sums(r, dots, "own_qk_dots");
  const Value q = r.weight(q_norm), k = r.weight(k_norm), d_q = r.gradient(q_norm), d_k = r.gradient(k_norm);
  const kernels::WideQkShape shape = wide_shape(s);
  r.call({.name = "wide_qk_dots",
          .touches = {{mine, write}, {d, read}, {x, read}, {q, read}, {k, read}},
          .work = passes_over_features(s, 2),
          .run = [=](const At& at) {
            kernels::wide_qk_dots(
                at.context,
                {.dots = at.get<float>(mine), .d = at.get(d), .x = at.get(x), .q_norm = at.get(q), .k_norm = at.get(k), .shape = shape});
          }});
  gather_sums(r, dots, mine);
  kernels::WideQkNormBackward sizes;
  sizes.shape = shape;
  r.call(
      {.name = "wide_qk_norm_backward",
       .touches = {{d, Access::add}, {x, read}, {sums, read}, {dots, read}, {q, read}, {k, read}, {d_q, Access::add}, {d_k, Access::add}},
       .work = passes_over_features(s, 3),
       .workspace = kernels::wide_qk_norm_backward_workspace_bytes(sizes, s.backend),
       .run = [=](const At& at) {
         auto p = sizes;
         p.d_q_norm = started(at, d_q, shape.Q), p.d_k_norm = started(at, d_k, shape.K);
         p.d = at.get(d), p.x = at.get(x), p.sums = at.get<float>(sums), p.dots = at.get<float>(dots);
         p.q_norm = at.get(q), p.k_norm = at.get(k);
         kernels::wide_qk_norm_backward(at.context, p);
       }});
}

}  // namespace tessera
