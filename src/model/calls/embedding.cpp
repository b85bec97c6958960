#include "model/calls/embedding.hpp"

#include "kernels/embedding/embedding.hpp"
#include "model/calls/parts.hpp"

namespace tessera {
namespace {

using enum Access;

kernels::VocabularySlice slice_of(const ModelShape& s) { return {.first = s.vocabulary().begin, .whole = s.tp == 1}; }
kernels::EmbeddingBackward embedding_shape(const ModelShape& s) {
  return {.M = s.tokens(), .C = s.C, .V = s.vocabulary().size(), .dtype = s.dtype, .slice = slice_of(s), .scale = s.embedding_scale};
}

/// Of this rank's rows of the stream, whose ids are those from `first` on.
struct PositionRows {
  Value ids;
  std::int64_t first = 0;
};
PositionRows position_rows(Recorder& r) {
  const ModelShape& s = r.s;
  if (s.feed == Feed::token) return {.ids = r.position()};
  return {.ids = r.declare({.kind = ValueKind::positions, .name = "positions"}), .first = s.tp_index * s.rows()};
}

/// out += the first rows of the table.
void add_first_rows(Recorder& r, Value out, Value table) {
  r.call({.name = "add positions", .touches = {{out, Access::add}, {table, read}}, .run = [=, s = r.s](const At& at) {
            kernels::add(at.context, at.get(out), at.get(out), at.get(table), s.rows() * s.C, s.dtype);
          }});
}

}  // namespace

void embedding(Recorder& r, Value rows, const std::string& w) {
  const ModelShape& s = r.s;
  const Value table = r.weight(w), ids = r.tokens();
  r.call({.name = "embedding",
          .touches = {{rows, write}, {table, read}, {ids, read}},
          .work = MemoryWork{2.0 * static_cast<double>(s.bytes_of(s.tokens() * s.C))},  // of the table, the rows of its tokens
          .run = [=, s = s](const At& at) {
            embedding_forward(at.context, {.out = at.get(rows),
                                           .table = at.get(table),
                                           .tokens = at.get<std::int32_t>(ids),
                                           .M = s.tokens(),
                                           .C = s.C,
                                           .dtype = s.dtype,
                                           .V = s.vocabulary().size(),
                                           .slice = slice_of(s),
                                           .scale = s.embedding_scale});
          }});
}

void embedding_backward(Recorder& r, Value d_rows, const std::string& w) {
  const ModelShape& s = r.s;
  const Value d_table = r.gradient(w), ids = r.tokens();
  r.call({.name = "embedding_backward",
          .touches = {{d_rows, read}, {ids, read}, {d_table, Access::add}},
          .work = MemoryWork{static_cast<double>(s.bytes_of(s.tokens() * s.C) + 8 * s.tokens() * s.C)},
          .workspace = kernels::embedding_backward_workspace_bytes(embedding_shape(s), s.backend),
          .run = [=, s = s](const At& at) {
            auto rows = embedding_shape(s);
            rows.d_table = started(at, d_table, rows.V * s.C), rows.d_out = at.get(d_rows), rows.tokens = at.get<std::int32_t>(ids);
            kernels::embedding_backward(at.context, rows);
          }});
}

void add_positions(Recorder& r, Value out, const std::string& w) {
  const ModelShape& s = r.s;
  if (s.learned_positions == 0) return;
  const Value table = r.weight(w);
  if (s.feed == Feed::prompt) return add_first_rows(r, out, table);
  const PositionRows here = position_rows(r);
  const Value rows = r.value("position_rows", {s.rows(), s.C});
  r.call({.name = "embedding positions",
          .touches = {{rows, write}, {table, read}, {here.ids, read}},
          .work = MemoryWork{2.0 * static_cast<double>(s.bytes_of(s.rows() * s.C))},
          .run = [=, s = s](const At& at) {
            embedding_forward(at.context, {.out = at.get(rows),
                                           .table = at.get(table),
                                           .tokens = at.get<std::int32_t>(here.ids) + here.first,
                                           .M = s.rows(),
                                           .C = s.C,
                                           .dtype = s.dtype,
                                           .V = s.learned_positions});
          }});
  add_first_rows(r, out, rows);
}

void add_positions_backward(Recorder& r, Value d_out, const std::string& w) {
  const ModelShape& s = r.s;
  if (s.learned_positions == 0) return;
  const Value d_table = r.gradient(w);
  const PositionRows here = position_rows(r);
  const kernels::EmbeddingBackward shape{.M = s.rows(), .C = s.C, .V = s.learned_positions, .dtype = s.dtype};
  r.call({.name = "embedding_backward positions",
          .touches = {{d_out, read}, {here.ids, read}, {d_table, Access::add}},
          .work = MemoryWork{static_cast<double>(s.bytes_of(s.rows() * s.C) + 8 * s.rows() * s.C)},
          .workspace = kernels::embedding_backward_workspace_bytes(shape, s.backend),
          .run = [=](const At& at) {
            auto rows = shape;
            rows.d_table = started(at, d_table, rows.V * rows.C), rows.d_out = at.get(d_out);
            rows.tokens = at.get<std::int32_t>(here.ids) + here.first;
            kernels::embedding_backward(at.context, rows);
          }});
}

}  // namespace tessera
