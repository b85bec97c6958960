// The stream begins as rows of the embedding's table, and vectors of their positions where the model has learned some.
#include "model/calls/embedding.hpp"
#include "model/axes/tensor.hpp"
#include "model/calls/rotation.hpp"

namespace tessera {

Segment embedding_segment(const ModelShape& s) {
  Recorder r(s, "embedding");
  const std::string w = "embedding.weight", p = "embedding.positions";
  const Value out = r.stream_out(), rows = sums_of(r, out, "rows", s.C);
  embedding(r, rows, w);
  scatter_rows(r, out, rows);
  add_positions(r, out, p);
  positions(r);
  if (r.backward()) {
    const Value d_out = r.d_stream(), d_rows = whole_of(r, d_out, "d_rows", s.C);
    gather_rows(r, d_rows, d_out);
    embedding_backward(r, d_rows, w);
    add_positions_backward(r, d_out, p);
  }
  return r.take();
}

}  // namespace tessera
