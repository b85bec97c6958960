#include "schedule/build/stages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.hpp"
#include "model/parameters.hpp"
#include "model/recompute.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/build/pipeline_order.hpp"

namespace tessera {
namespace {

/// What a layer, the embedding and the head cost, each alone.
struct Costs {
  double layer_flops = 0, head_flops = 0;
  double layer_state = 0, embedding_state = 0, head_state = 0;  ///< bytes through the run
  double layer_activations = 0;                                 ///< bytes of a micro-batch
};

double flops_of(const Segment& segment) {
  double flops = 0;
  for (const Call& call : segment.backward) flops += call.flops;
  if (!segment.joint)
    for (const Call& call : segment.forward) flops += call.flops;
  return flops;
}

/// Bytes a parameter that a rank keeps through the run.
double state_bytes(const Deck& deck, int shards) {
  const double ranks = shards, stage = static_cast<double>(deck.zero.stage);
  const double copy = static_cast<double>(size_of(deck.precision.compute)), optimizer = copy < 4 ? 12 : 8;
  const double gradient = deck.precision.gradients == DType::bf16 ? 2 : deck.run.reproducible ? 8 : 4;
  return copy / (stage == 3 ? ranks : 1) + gradient / (stage >= 2 ? ranks : 1) + optimizer / (stage >= 1 ? ranks : 1);
}

Costs costs_of(const Deck& deck, const Mesh& mesh) {
  ModelShape shape = cut_over_tp(model_shape(deck), mesh.size(Axis::tp), 0);
  shape.L = 1;
  const std::vector<Segment> segments = model_segments(shape);
  ActivationKeys keys = deck.activation;
  if (keys.recompute == "auto") keys.recompute = "none";
  const ActivationPlan plan = plan_activations(segments, recompute_of(segments, keys));
  Costs costs{.head_flops = flops_of(segments.back())};
  for (std::size_t s = 0; s < segments.size(); ++s) {
    if (segments[s].layer < 0) continue;
    costs.layer_flops += flops_of(segments[s]);
    for (std::size_t v = 0; v < segments[s].values.size(); ++v) {
      const ValueInfo& value = segments[s].values[v];
      const bool kept = plan.kept[s][v] == KeptBy::forward || (value.kind == ValueKind::stream_out && !plan.stream_dropped[s]);
      if (kept) costs.layer_activations += static_cast<double>(value.bytes);
    }
  }
  const double bytes = state_bytes(deck, group_of(mesh, owner_axes(mesh), 0).size);
  const double of_experts = state_bytes(deck, group_of(mesh, expert_owner_axes(mesh), 0).size) / mesh.size(Axis::ep);
  const double of_shared = state_bytes(deck, group_of(mesh, owner_axes(mesh), 0).size * mesh.size(Axis::tp));
  // Any layer stands for all: what of the model is frozen is not looked at.
  ModelKeys model = deck.model;
  model.layers = 1, model.freeze.clear(), model.lora = {};
  for (const Parameter& p : parameter_table(model)) {
    const double each = p.part == Part::experts ? of_experts : p.part == Part::shared ? of_shared : bytes;
    const double state = each * static_cast<double>(p.shape.elements()) / (p.tp_dim >= 0 ? mesh.size(Axis::tp) : 1);
    (p.part == Part::embedding ? costs.embedding_state : p.part == Part::head ? costs.head_state : costs.layer_state) += state;
  }
  return costs;
}

/// What a virtual stage has beside its layers, and how many micro-batches it keeps activations of.
struct VirtualStage {
  int stage = 0;
  bool embedding = false, head = false;
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
  all.front().embedding = all.back().head = true;
  if (deck.model.tied) all.back().embedding = true;
  return all;
}

/// Layers that a virtual stage can have and take no longer than so many FLOPs.
std::int64_t most_layers(const Costs& costs, const VirtualStage& stage, double flops) {
  const double left = flops - (stage.head ? costs.head_flops : 0);
  return static_cast<std::int64_t>(left / costs.layer_flops * (1 + 1e-12));
}

/// The fewest FLOPs of a slowest virtual stage: those of some layers, or of some layers and the head.
double least_flops(const Costs& costs, const std::vector<VirtualStage>& stages, std::int64_t layers) {
  std::vector<double> candidates;
  for (std::int64_t n = 1; n <= layers; ++n)
    for (const double head : {0.0, costs.head_flops}) candidates.push_back(static_cast<double>(n) * costs.layer_flops + head);
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

double bytes_with(const Costs& costs, const VirtualStage& stage, std::int64_t layers) {
  const auto n = static_cast<double>(layers);
  return n * costs.layer_state + (stage.embedding ? costs.embedding_state : 0) + (stage.head ? costs.head_state : 0) +
         n * costs.layer_activations * static_cast<double>(stage.in_flight);
}

}  // namespace

int Stage::chunk_of(std::int64_t layer) const {
  for (std::size_t c = 0; c < layers.size(); ++c)
    if (layers[c].begin <= layer && layer < layers[c].end) return static_cast<int>(c);
  return -1;
}

int chunks_of_stage(const PipelineKeys& keys) { return keys.schedule == "interleaved" ? static_cast<int>(keys.virtual_stages) : 1; }

std::vector<std::int64_t> layers_of_stages(const Deck& deck, const Mesh& mesh) {
  const std::vector<VirtualStage> stages = virtual_stages(deck, mesh);
  const std::int64_t layers = deck.model.layers;
  TESSERA_REQUIRE(std::ssize(stages) <= layers, "{} virtual stages of {} layers", stages.size(), layers);
  if (!deck.pipeline.layers.empty()) return deck.pipeline.layers;
  const Costs costs = costs_of(deck, mesh);
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
