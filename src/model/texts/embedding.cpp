// The stream begins as rows of the embedding's table.
#include "model/record/recorder.hpp"

namespace tessera {

Segment embedding_segment(const ModelShape& s) {
  Recorder r(s, "embedding");
  r.embedding(r.stream_out(), "embedding.weight");
  r.positions();
  if (r.backward()) r.embedding_backward(r.d_stream(), "embedding.weight");
  return r.take();
}

}  // namespace tessera
