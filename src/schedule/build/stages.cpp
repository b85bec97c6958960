#include "schedule/build/stages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "base/check.hpp"
#include "deck/kinds_of_layers.hpp"
#include "deck/ramp.hpp"
#include "model/record/leave_frozen.hpp"
#include "model/record/recompute.hpp"
#include "model/table/parameters.hpp"
#include "optimizer/state.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/build/pipeline_order.hpp"

namespace tessera {
namespace {

/// A layer's, or those of layers that follow each other.
struct LayerCost {
  double flops = 0;
  double state = 0;        ///< bytes through the run
  double activations = 0;  ///< bytes of a micro-batch
  LayerCost& operator+=(const LayerCost& o) { return flops += o.flops, state += o.state, activations += o.activations, *this; }
  LayerCost& operator-=(const LayerCost& o) { return flops -= o.flops, state -= o.state, activations -= o.activations, *this; }
  friend bool operator==(const LayerCost&, const LayerCost&) = default;
};

/// What layers, the embedding and the head cost, each alone.
struct Costs {
  std::vector<LayerCost> layers;
  /// Of layers that the first virtual stage has with those below them, where the backward pass ends above the lowest of these: the layers
  /// up to the one of which this is `end` cost it so. Empty where nothing is frozen.
  std::vector<LayerCost> ended;
  std::int64_t end = 0;
  double head_flops = 0, embedding_state = 0, positions_state = 0, head_state = 0;

  /// Layers are alike, and any of them stands for all.
  bool alike() const {
    return end == 0 && std::ranges::all_of(layers, [&](const LayerCost& l) { return l == layers.front(); });
  }
};

double flops_of(const Segment& segment) {
  double flops = 0;
  for (const Call& call : segment.backward) flops += call.flops;
  if (!segment.joint)
    for (const Call& call : segment.forward) flops += call.flops;
  return flops;
}

/// Bytes a parameter that a rank keeps through the run.
double kept_bytes(const Deck& deck, int shards, const Parameter& p) {
  const double ranks = shards, stage = static_cast<double>(deck.zero.stage);
  const double copy = static_cast<double>(size_of(deck.precision.compute));
  const double optimizer = (copy < 4 ? 4 : 0) + static_cast<double>(state_bytes(deck.optimizer, p.optimizer));
  const bool fixed = deck.run.reproducible && deck.precision.gradients == DType::f32;
  const auto gradient = static_cast<double>(size_of(fixed ? DType::i64 : deck.precision.gradients));
  const double compute = copy / (stage == 3 ? ranks : 1);
  return p.frozen ? compute : compute + gradient / (stage >= 2 ? ranks : 1) + optimizer / (stage >= 1 ? ranks : 1);
}

/// FLOPs and activations of each layer.
std::vector<LayerCost> costs_of_layers(const Deck& deck, const std::vector<Segment>& segments) {
  ActivationKeys keys = deck.activation;
  if (keys.recompute == Recompute::automatic) keys.recompute = Recompute::none;
  const ActivationPlan plan = plan_activations(segments, recompute_of(segments, keys));
  std::vector<LayerCost> layers;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    if (segments[s].layer < 0) continue;
    layers.resize(static_cast<std::size_t>(segments[s].layer) + 1);
    layers.back().flops += flops_of(segments[s]);
    for (std::size_t v = 0; v < segments[s].values.size() && !segments[s].backward.empty(); ++v) {
      const ValueInfo& value = segments[s].values[v];
      const bool kept = plan.kept[s][v] == KeptBy::forward || (value.kind == ValueKind::stream_out && !plan.stream_dropped[s]);
      if (kept) layers.back().activations += static_cast<double>(value.bytes);
    }
  }
  return layers;
}

/// Bytes of what lies on a rank through the run.
void add_state(Costs& costs, const Deck& deck, const ModelKeys& model, const Mesh& mesh) {
  const int owners = group_of(mesh, owner_axes(mesh), 0).size, experts = group_of(mesh, expert_owner_axes(mesh), 0).size;
  std::vector<Parameter> table = parameter_table(model);
  assign_optimizers(deck.optimizer, table, mesh.size(Axis::tp));
  for (const Parameter& p : table) {
    const int shards = p.part == Part::experts ? experts : p.part == Part::shared ? owners * mesh.size(Axis::tp) : owners;
    const double parts = p.part == Part::experts ? mesh.size(Axis::ep) : p.tp_dim >= 0 ? mesh.size(Axis::tp) : 1;
    const double state = kept_bytes(deck, shards, p) * static_cast<double>(p.shape.elements()) / parts;
    if (p.part == Part::embedding)
      costs.embedding_state += state;
    else if (p.part == Part::positions)
      costs.positions_state += state;
    else if (p.part == Part::head)
      costs.head_state += state;
    else
      costs.layers[static_cast<std::size_t>(p.layer)].state += state;
  }
}

/// A model of the first layer of each kind, and which of its layers each of the model's is like.
std::pair<ModelKeys, std::vector<std::size_t>> first_of_each_kind(const ModelKeys& m) {
  ModelKeys firsts = m;
  firsts.pattern.clear(), firsts.dense_layers = 0;
  std::vector<LayerKeys> kinds;
  std::vector<std::size_t> like;
  for (const LayerKeys& keys : keys_of_layers(m)) {
    const auto layer = static_cast<std::int64_t>(like.size());
    like.push_back(static_cast<std::size_t>(std::ranges::find(kinds, keys) - kinds.begin()));
    if (like.back() < kinds.size()) continue;
    kinds.push_back(keys);
    if (const KindKeys* kind = m.kind_of(layer)) firsts.pattern += kind->name;
    if (layer < m.dense_layers) ++firsts.dense_layers;
  }
  firsts.layers = static_cast<std::int64_t>(kinds.size());
  return {firsts, like};
}

Costs costs_of(const Deck& deck, const Mesh& mesh) {
  const bool frozen = !deck.model.freeze.empty() || deck.model.lora.rank > 0;
  const auto [firsts, like] = first_of_each_kind(deck.model);
  Deck priced = deck;
  if (!frozen) priced.model = firsts;
  const ModelKeys& model = priced.model;
  const ModelShape shape = cut_over_tp(model_shape(priced), mesh.size(Axis::tp), 0);
  const auto for_all = [&](std::vector<LayerCost>& layers) {
    std::vector<LayerCost> all;
    for (const std::size_t kind : like) all.push_back(layers[kind]);
    layers = std::move(all);
  };
  std::vector<Segment> segments = model_segments(shape);
  const Layout layout = make_layout(parameter_table(model), 1, 0);
  leave_frozen(segments, layout, 0);
  Costs costs{.layers = costs_of_layers(deck, segments), .ended = {}, .head_flops = flops_of(segments.back())};
  // Patterns of groups may give a layer another optimizer than its neighbour.
  if (const bool alike = frozen || deck.optimizer.groups.empty(); !alike) {
    for_all(costs.layers);
    add_state(costs, deck, deck.model, mesh);
    return costs;
  }
  add_state(costs, deck, model, mesh);
  if (!frozen) {
    for_all(costs.layers);
    return costs;
  }
  leave_frozen(segments, layout, segments.size());
  costs.ended = costs_of_layers(deck, segments);
  for (std::size_t l = 0; l < costs.layers.size(); ++l) costs.ended[l].state = costs.layers[l].state;
  costs.end = std::max(0, std::ranges::find_if(segments, [](const Segment& s) { return !s.backward.empty(); })->layer);
  return costs;
}

/// What a virtual stage has beside its layers, and how many micro-batches it keeps activations of.
struct VirtualStage {
  int stage = 0;
  bool embedding = false, positions = false, head = false;
  std::int64_t in_flight = 1;
};

std::vector<VirtualStage> virtual_stages(const Deck& deck, const Mesh& mesh) {
  const std::int64_t micro_batches = accumulation_steps(deck, batch_ranks(mesh));
  const int stages = mesh.size(Axis::pp), chunks = chunks_of_stage(deck.pipeline);
  std::vector<VirtualStage> all(static_cast<std::size_t>(stages * chunks));
  for (int s = 0; s < stages; ++s) {
    const Stage stage{.number = s, .count = stages, .layers = std::vector<Range>(static_cast<std::size_t>(chunks))};
    const std::vector<InFlight> flights = in_flight(pipeline_order(deck.pipeline, stage, micro_batches, false), chunks);
    for (int c = 0; c < chunks; ++c) {
      const InFlight& flight = flights[static_cast<std::size_t>(c)];
      all[static_cast<std::size_t>(c * stages + s)] = {.stage = s, .in_flight = flight.to_backward + flight.backward_to_weights};
    }
  }
  all.front().embedding = all.front().positions = all.back().head = true;
  if (deck.model.tied) all.back().embedding = true;
  return all;
}

/// Layers that a virtual stage can have and take no longer than so many FLOPs.
std::int64_t most_layers(const Costs& costs, const VirtualStage& stage, double flops) {
  const double left = flops - (stage.head ? costs.head_flops : 0);
  return static_cast<std::int64_t>(left / costs.layers.front().flops * (1 + 1e-12));
}

/// The fewest FLOPs of a slowest virtual stage: those of some layers, or of some layers and the head.
double least_flops(const Costs& costs, const std::vector<VirtualStage>& stages, std::int64_t layers) {
  std::vector<double> candidates;
  for (std::int64_t n = 1; n <= layers; ++n)
    for (const double head : {0.0, costs.head_flops}) candidates.push_back(static_cast<double>(n) * costs.layers.front().flops + head);
  std::ranges::sort(candidates);
  return *std::ranges::find_if(candidates, [&](double flops) {
    std::int64_t room = 0;
    for (const VirtualStage& stage : stages) {
      const std::int64_t most = most_layers(costs, stage, flops);
      if (most < 1) return false;
      room += most;
    }
    return room >= layers;
  });
}

/// Layers that each stage has at most, so that the slowest is the fastest; of virtual stages that is a matter of its own. No bound where
/// `most` of the virtual stages leave no room for it.
std::vector<std::int64_t> most_of_stages(const Costs& costs, const std::vector<VirtualStage>& stages, const std::vector<std::int64_t>& most,
                                         int count, std::int64_t layers) {
  std::vector<VirtualStage> whole(static_cast<std::size_t>(count));
  whole.back().head = true;
  const double flops = least_flops(costs, whole, layers);
  std::vector<std::int64_t> bounds, rooms(whole.size(), 0);
  for (const VirtualStage& stage : whole) bounds.push_back(most_layers(costs, stage, flops));
  for (std::size_t s = 0; s < stages.size(); ++s) rooms[static_cast<std::size_t>(stages[s].stage)] += most[s];
  std::int64_t room = 0;
  for (std::size_t s = 0; s < whole.size(); ++s) room += std::min(bounds[s], rooms[s]);
  return room >= layers ? bounds : std::vector<std::int64_t>(whole.size(), layers);
}

/// Of what a virtual stage has beside its layers.
double state_of_ends(const Costs& costs, const VirtualStage& stage) {
  return (stage.embedding ? costs.embedding_state : 0) + (stage.positions ? costs.positions_state : 0) +
         (stage.head ? costs.head_state : 0);
}

double bytes_with(const Costs& costs, const VirtualStage& stage, std::int64_t layers) {
  const auto n = static_cast<double>(layers);
  return n * costs.layers.front().state + state_of_ends(costs, stage) +
         n * costs.layers.front().activations * static_cast<double>(stage.in_flight);
}

/// Of so many first layers each.
std::vector<LayerCost> sums_of(const std::vector<LayerCost>& layers) {
  std::vector<LayerCost> sums(1);
  for (const LayerCost& layer : layers) (sums.emplace_back(sums.back())) += layer;
  return sums;
}

/// The cut of layers into so many runs of at least one whose largest price is the least; a price may be infinite.
std::vector<std::int64_t> best_cut(std::size_t runs, std::int64_t layers,
                                   const std::function<double(std::size_t run, std::int64_t begin, std::int64_t end)>& price) {
  const auto n = static_cast<std::size_t>(layers) + 1;
  constexpr double none = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> least(runs + 1, std::vector<double>(n, none));  // of the first runs, up to a layer
  std::vector<std::vector<std::int64_t>> begin(runs + 1, std::vector<std::int64_t>(n, 0));
  least[0][0] = 0;
  for (std::size_t r = 0; r < runs; ++r)
    for (std::size_t end = r + 1; end < n; ++end)
      for (std::size_t from = r; from < end; ++from) {
        if (least[r][from] == none) continue;
        const double worst = std::max(least[r][from], price(r, static_cast<std::int64_t>(from), static_cast<std::int64_t>(end)));
        if (worst < least[r + 1][end]) least[r + 1][end] = worst, begin[r + 1][end] = static_cast<std::int64_t>(from);
      }
  std::vector<std::int64_t> cut(runs);
  for (std::size_t r = runs, end = n - 1; r > 0; --r) {
    const std::int64_t from = begin[r][end];
    cut[r - 1] = static_cast<std::int64_t>(end) - from, end = static_cast<std::size_t>(from);
  }
  return cut;
}

/// Where layers differ, since some tensors are frozen, some have no experts or some another optimizer: the cut whose slowest virtual stage
/// is the fastest, and of those the one whose fullest virtual stage holds the least.
std::vector<std::int64_t> cut_of_unlike(const Costs& costs, const std::vector<VirtualStage>& stages) {
  const std::vector<LayerCost> whole = sums_of(costs.layers), ended = sums_of(costs.ended);
  const auto cost_of = [&](std::size_t v, std::int64_t begin, std::int64_t end) {
    const std::vector<LayerCost>& sums = v == 0 && !costs.ended.empty() && end > costs.end ? ended : whole;
    LayerCost cost = sums[static_cast<std::size_t>(end)];
    cost -= sums[static_cast<std::size_t>(begin)];
    return cost;
  };
  const auto flops = [&](std::size_t v, std::int64_t begin, std::int64_t end) {
    return cost_of(v, begin, end).flops + (stages[v].head ? costs.head_flops : 0);
  };
  const std::int64_t layers = std::ssize(costs.layers);
  const std::vector<std::int64_t> fastest = best_cut(stages.size(), layers, flops);
  double slowest = 0;
  for (std::size_t v = 0, begin = 0; v < stages.size(); begin += static_cast<std::size_t>(fastest[v]), ++v)
    slowest = std::max(slowest, flops(v, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(begin) + fastest[v]));
  return best_cut(stages.size(), layers, [&](std::size_t v, std::int64_t begin, std::int64_t end) {
    if (flops(v, begin, end) > slowest * (1 + 1e-12)) return std::numeric_limits<double>::infinity();
    const LayerCost cost = cost_of(v, begin, end);
    return cost.state + cost.activations * static_cast<double>(stages[v].in_flight) + state_of_ends(costs, stages[v]);
  });
}

}  // namespace

int Stage::chunk_of(std::int64_t layer) const {
  for (std::size_t c = 0; c < layers.size(); ++c)
    if (layers[c].begin <= layer && layer < layers[c].end) return static_cast<int>(c);
  return -1;
}

int chunks_of_stage(const PipelineKeys& keys) {
  return keys.schedule == PipelineSchedule::interleaved ? static_cast<int>(keys.virtual_stages) : 1;
}

std::vector<std::int64_t> layers_of_stages(const Deck& deck, const Mesh& mesh) {
  const Deck last = with_last_batch(deck);
  const std::vector<VirtualStage> stages = virtual_stages(last, mesh);
  const std::int64_t layers = deck.model.layers;
  TESSERA_REQUIRE(std::ssize(stages) <= layers, "{} virtual stages of {} layers", stages.size(), layers);
  if (!deck.pipeline.layers.empty()) return deck.pipeline.layers;
  const Costs costs = costs_of(last, mesh);
  if (!costs.alike()) return cut_of_unlike(costs, stages);
  const double flops = least_flops(costs, stages, layers);
  std::vector<std::int64_t> cut(stages.size(), 1), most;
  for (const VirtualStage& stage : stages) most.push_back(most_layers(costs, stage, flops));
  const std::vector<std::int64_t> bounds = most_of_stages(costs, stages, most, mesh.size(Axis::pp), layers);
  std::vector<std::int64_t> taken(bounds.size(), chunks_of_stage(deck.pipeline));
  // Of the stage that a virtual stage belongs to, were that one to have so many layers.
  const auto bytes_of = [&](std::size_t changed, std::int64_t count) {
    double bytes = 0;
    for (std::size_t s = 0; s < stages.size(); ++s)
      if (stages[s].stage == stages[changed].stage) bytes += bytes_with(costs, stages[s], s == changed ? count : cut[s]);
    return bytes;
  };
  for (auto left = layers - std::ssize(stages); left > 0; --left) {
    // Each layer goes to the stage that then holds the least.
    std::size_t best = stages.size();
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const auto stage = static_cast<std::size_t>(stages[s].stage);
      if (cut[s] >= most[s] || taken[stage] >= bounds[stage]) continue;
      if (const double bytes = bytes_of(s, cut[s] + 1); bytes < least) best = s, least = bytes;
    }
    ++cut[best], ++taken[static_cast<std::size_t>(stages[best].stage)];
  }
  return cut;
}

Stage stage_of(const Deck& deck, const Mesh& mesh, int world_rank) {
  Stage stage{.number = coordinates_of(mesh, world_rank)[static_cast<std::size_t>(Axis::pp)], .count = mesh.size(Axis::pp), .layers = {}};
  if (stage.count == 1) return {.layers = {{0, deck.model.layers}}};
  std::int64_t layer = 0;
  int number = 0;
  for (const std::int64_t count : layers_of_stages(deck, mesh)) {
    if (number++ % stage.count == stage.number) stage.layers.push_back({layer, layer + count});
    layer += count;
  }
  return stage;
}

}  // namespace tessera
