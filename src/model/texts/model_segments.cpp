#include "model/record/segment.hpp"

namespace tessera {

std::vector<Segment> model_segments(const ModelShape& s) {
  std::vector<Segment> segments{embedding_segment(s)};
  for (int layer = 0; layer < s.L; ++layer) {
    if (s.block.side_by_side()) {
      segments.push_back(side_by_side_segment(s, layer));
      continue;
    }
    segments.push_back(attention_segment(s, layer));
    segments.push_back(s.has_experts(layer) ? moe_segment(s, layer) : mlp_segment(s, layer));
  }
  segments.push_back(head_segment(s));
  return segments;
}

}  // namespace tessera
