#include "model/calls/rotation.hpp"

#include "kernels/embedding/embedding.hpp"
#include "kernels/qk_norm_rope/qk_norm_rope.hpp"
#include "kernels/rope/rope.hpp"
#include "model/calls/parts.hpp"

namespace tessera {
namespace {

using enum Access;

kernels::Rope rope_shape(const ModelShape& s, bool inverse) {
  return {.M = s.tokens(),
          .T = s.T,
          .heads = s.attention.H + s.attention.G,
          .D = s.attention.D,
          .stride = s.attention.qkv_width(),
          .inverse = inverse,
          .dtype = s.dtype,
          .rotated = s.rotation.rotated,
          .neighbours = s.rotation.neighbours};
}
kernels::QkNormRopeBackward qk_norm_rope_shape(const ModelShape& s) {
  return {.M = s.tokens(),
          .T = s.T,
          .H = s.attention.H,
          .G = s.attention.G,
          .D = s.attention.D,
          .dtype = s.dtype,
          .offset = s.block.norm_offset,
          .rotated = s.rotation.rotated,
          .neighbours = s.rotation.neighbours};
}

/// rope and rope_backward.
void rotate_heads(Recorder& r, const char* name, Value heads, bool inverse) {
  const Value table = r.rotations(r.s.kind.rotation), documents = r.document_starts();
  r.call({.name = name, .touches = with_reads({{heads, Access::add}, {table, read}}, {documents}), .run = [=, s = r.inside](const At& at) {
            auto rotation = rope_shape(s, inverse);
            rotation.x = at.get(heads), rotation.table = at.get<float>(table);
            rotation.document_starts = at.get<std::int32_t>(documents);
            kernels::rope(at.context, rotation);
          }});
}

}  // namespace

void rope(Recorder& r, Value qkv) {
  if (r.s.kind.rotation >= 0) rotate_heads(r, "rope", qkv, false);
}

void rope_backward(Recorder& r, Value d_qkv) {
  if (r.s.kind.rotation >= 0) rotate_heads(r, "rope_backward", d_qkv, true);
}

void qk_norm_rope(Recorder& r, Value out, Value rstd, Value x, const std::string& q_norm, const std::string& k_norm) {
  const Attention& a = r.s.attention;
  TESSERA_REQUIRE(a.Dv == a.D, "QK-norm copies values as heads of {} features, and these have {}", a.D, a.Dv);
  const Value table = r.rotations(r.s.kind.rotation), q = r.weight(q_norm), k = r.weight(k_norm), documents = r.document_starts();
  r.call({.name = "qk_norm_rope",
          .touches = with_reads({{out, write}, {rstd, write}, {x, read}, {q, read}, {k, read}, {table, read}}, {documents}),
          .run = [=, s = r.inside](const At& at) {
            qk_norm_rope_forward(at.context, {.out = at.get(out),
                                              .rstd = at.get<float>(rstd),
                                              .x = at.get(x),
                                              .q_norm = at.get(q),
                                              .k_norm = at.get(k),
                                              .table = at.get<float>(table),
                                              .M = s.tokens(),
                                              .T = s.T,
                                              .H = s.attention.H,
                                              .G = s.attention.G,
                                              .D = s.attention.D,
                                              .eps = s.block.norm_eps,
                                              .dtype = s.dtype,
                                              .offset = s.block.norm_offset,
                                              .document_starts = at.get<std::int32_t>(documents),
                                              .rotated = s.rotation.rotated,
                                              .neighbours = s.rotation.neighbours});
          }});
}

void qk_norm_rope_backward(Recorder& r, Value d_qkv, Value x, Value rstd, const std::string& q_norm, const std::string& k_norm) {
  const ModelShape& s = r.s;
  const Value table = r.rotations(s.kind.rotation), q = r.weight(q_norm), k = r.weight(k_norm), d_q = r.gradient(q_norm),
              d_k = r.gradient(k_norm);
  const Value documents = r.document_starts();
  r.call({.name = "qk_norm_rope_backward",
          .touches = with_reads(
              {{d_qkv, Access::add}, {x, read}, {rstd, read}, {q, read}, {k, read}, {table, read}, {d_q, Access::add}, {d_k, Access::add}},
              {documents}),
          .workspace = kernels::qk_norm_rope_backward_workspace_bytes(qk_norm_rope_shape(r.inside), s.backend),
          .run = [=, s = r.inside](const At& at) {
            auto heads = qk_norm_rope_shape(s);
            heads.d_q_norm = started(at, d_q, s.attention.D), heads.d_k_norm = started(at, d_k, s.attention.D);
            heads.d_qkv = at.get(d_qkv), heads.x = at.get(x), heads.rstd = at.get<float>(rstd);
            heads.q_norm = at.get(q), heads.k_norm = at.get(k), heads.table = at.get<float>(table);
            heads.document_starts = at.get<std::int32_t>(documents);
            kernels::qk_norm_rope_backward(at.context, heads);
          }});
}

void positions(Recorder& r) {
  const ModelShape& s = r.s;
  if (s.feed != Feed::token) return;
  for (int rotation = 0; rotation < static_cast<int>(s.rotation.tables.size()); ++rotation) {
    const Value out = r.rotations(rotation), table = r.rope_table(rotation), position = r.position();
    r.call({.name = "positions", .touches = {{out, write}, {table, read}, {position, read}}, .run = [=, s = s](const At& at) {
              embedding_forward(at.context, {.out = at.get(out),
                                             .table = at.get(table),
                                             .tokens = at.get<std::int32_t>(position),
                                             .M = s.tokens(),
                                             .C = s.rotated_features(),
                                             .dtype = DType::f32});
            }});
  }
}

}  // namespace tessera
