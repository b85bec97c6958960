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

}  // namespace tessera
