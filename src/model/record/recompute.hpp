// What a training step keeps of its forward passes for the backward passes, and what it makes again (Chen et al., arXiv:1604.06174;
// Korthikanti et al., arXiv:2205.05198). Pure functions of the record.
#pragma once
#include <set>
#include <span>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "model/record/passes.hpp"

namespace tessera {

/// What is made again in a layer. Values are named as "mlp.gate_up": layers are treated alike.
struct RecomputeLevel {
  std::set<std::string> dropped;
  std::int64_t every = 0;  ///< layers between two kept streams; 0: the stream between any two segments is kept
  friend bool operator==(const RecomputeLevel&, const RecomputeLevel&) = default;
};

/// The first layers' activations are kept longest, so a mixture drops more of them.
struct RecomputeChoice {
  RecomputeLevel early, late;
  std::int64_t layers = 0;     ///< that are `early`; the others are `late`
  std::set<std::string> keep;  ///< values that no level drops, also such as the text says are always made again
  friend bool operator==(const RecomputeChoice&, const RecomputeChoice&) = default;
};

struct ActivationPlan {
  std::vector<Kept> kept;            ///< by segment
  std::vector<bool> stream_dropped;  ///< by segment: the stream that leaves it is not kept; the passes that need it make it again
  /// Segments whose backward passes follow each other without a kept stream between them: [first, last], in forward order.
  struct Span {
    int first = 0, last = 0;
  };
  std::vector<Span> spans;
};

/// Names of the values that a forward pass of the layers makes, sorted: what may be kept or dropped.
std::vector<std::string> value_names(const std::vector<Segment>& segments);
/// What is wrong with activation.keep of a model of which all is trained: a name that is neither a value that a backward pass needs nor a
/// kind of segment, with those that there are and the nearest. Empty: nothing.
std::string fault_of_keep(const std::vector<Segment>& segments, const std::vector<std::string>& keep);
/// The values of activation.keep, in which a kind of segment ("attention") stands for all that it keeps with recompute = "none"; with a
/// value are kept those that are made with it. Throws Error(usage) where a name is none of a value or kind of segment.
std::set<std::string> kept_values(const std::vector<Segment>& segments, const std::vector<std::string>& keep);
/// What the deck's keys say. "none" drops nothing; "selective", in every segment alike, the values that cost the fewest FLOPs a byte to
/// make again, until half of the bytes are gone; "full" all, with a stream kept every `activation.every` layers. Not "auto".
RecomputeChoice recompute_of(const std::vector<Segment>& segments, const ActivationKeys& keys);
/// `begins`: segments with which a span begins at the latest, since others run between it and the one before.
ActivationPlan plan_activations(const std::vector<Segment>& segments, const RecomputeChoice& choice, const std::set<int>& begins = {});

/// A level of a layer, and what it costs there.
struct LevelCost {
  RecomputeLevel level;
  double flops = 0;        ///< made again, of one layer; with every > 1 on average over a whole span
  int calls = 0;           ///< the same in calls of kernels
  std::int64_t bytes = 0;  ///< kept for the backward pass
};
/// Whether the segment that represents its kind in recompute_levels() makes all backward calls of the others of that kind.
bool representatives_have_all_calls(const std::vector<Segment>& segments);
/// Levels worth a choice, cheapest first: each keeps fewer bytes than all that cost less. The first drops nothing.
std::vector<LevelCost> recompute_levels(const std::vector<Segment>& segments, const std::set<std::string>& keep);
/// "nothing", "mlp.gate_up and attention.qkv", "all, with a kept stream every 2 layers"
std::string describe(const RecomputeLevel& level);

}  // namespace tessera
