#include "model/record/flops.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "model/record/leave_frozen.hpp"
#include "model/table/parameters.hpp"
#include "model/towers/towers.hpp"

namespace tessera {
namespace {

/// The whole model for one token: what a call costs is then what a token costs.
ModelShape shape_of_a_token(const Deck& deck) {
  ModelShape s = model_shape(deck);
  s.B = s.T = s.loss_chunk = 1;
  s.cp = s.ep = 1, s.ring = false;
  s.experts.capacity_factor = 0;
  s.fp8 = {};  // which a GPU has of many tokens
  return s;
}

void add_flops(FlopsPerToken& sum, const Call& call, double attention) {
  const auto* work = std::get_if<AttentionWork>(&call.work);
  if (!work) {
    sum.products += call.flops;
    return;
  }
  const auto known = std::ranges::find(sum.attention, work->window, &FlopsPerToken::Attention::window);
  FlopsPerToken::Attention& of = known == sum.attention.end() ? sum.attention.emplace_back(work->window) : *known;
  of.flops += work->backward ? 2 * attention : attention;
}

}  // namespace

FlopsPerToken flops_per_token(const Deck& deck) {
  const ModelShape shape = shape_of_a_token(deck);
  std::vector<Segment> segments = model_segments(shape);
  leave_frozen(segments, make_layout(parameter_table(deck.model), 1, 0), segments.size());
  const double attention = 2 * causal_flops(shape);
  FlopsPerToken sum;
  for (const Segment& segment : segments) {
    for (const Call& call : segment.backward) add_flops(sum, call, attention);
    if (segment.joint) continue;
    for (const Call& call : segment.forward) add_flops(sum, call, attention);
  }
  for (const TowerRow* row : tower_rows()) {
    if (!row->wanted(deck)) continue;
    const ModelShape beside = shape_of_a_token(row->deck(deck));
    for (const Segment& segment : model_segments(beside))
      for (const Call& call : segment.forward) add_flops(sum, call, 2 * causal_flops(beside));
  }
  return sum;
}

double FlopsPerToken::of_attention(double length) const {
  double sum = 0;
  for (const Attention& of : attention) sum += of.flops * seen_keys(length, of.window);
  return sum;
}

std::string describe_flops(const Deck& deck) {
  const FlopsPerToken flops = flops_per_token(deck);
  const auto length = static_cast<double>(deck.batch.sequence_length);
  const std::string full = human_count(flops.full(length)), causal = human_count(flops.causal(length));
  if (!deck.data.document_mask) return fmt::format("{} FLOPs a token (causal: {})", full, causal);
  return fmt::format("at most {} FLOPs a token (causal: {}), in sequences of one document; of products alone {}", full, causal,
                     human_count(flops.products));
}

}  // namespace tessera
