#include "schedule/build/stages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.hpp"
#include "model/parameters.hpp"
#include "model/recompute.hpp"
#include "schedule/build/micro_batches.hpp"

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
  const double bytes = state_bytes(deck, mesh.size(Axis::dp));
  ModelKeys model = deck.model;
  model.layers = 1;
  for (const Parameter& p : parameter_table(model)) {
    const double state = bytes * static_cast<double>(p.shape.elements()) / (p.tp_dim >= 0 ? mesh.size(Axis::tp) : 1);
    (p.part == Part::embedding ? costs.embedding_state : p.part == Part::head ? costs.head_state : costs.layer_state) += state;
  }
  return costs;
}

/// Layers that a stage can have and take no longer than so many FLOPs.
std::int64_t most_layers(const Costs& costs, const Stage& stage, double flops) {
  const double left = flops - (stage.last() ? costs.head_flops : 0);
  return static_cast<std::int64_t>(left / costs.layer_flops * (1 + 1e-12));
}

std::vector<Stage> stages_of(const Mesh& mesh) {
  std::vector<Stage> stages;
  for (int s = 0; s < mesh.size(Axis::pp); ++s) stages.push_back({.number = s, .count = mesh.size(Axis::pp), .layers = {}});
  return stages;
}

/// The fewest FLOPs of a slowest stage: those of some layers, or of some layers and the head.
double least_flops(const Costs& costs, const std::vector<Stage>& stages, std::int64_t layers) {
  std::vector<double> candidates;
  for (std::int64_t n = 1; n <= layers; ++n)
    for (const double head : {0.0, costs.head_flops}) candidates.push_back(static_cast<double>(n) * costs.layer_flops + head);
  std::ranges::sort(candidates);
  return *std::ranges::find_if(candidates, [&](double flops) {
    std::int64_t room = 0;
    for (const Stage& stage : stages) {
      const std::int64_t most = most_layers(costs, stage, flops);
      if (most < 1) return false;
      room += most;
    }
    return room >= layers;
  });
}

double bytes_with(const Costs& costs, const Stage& stage, std::int64_t layers, const Deck& deck, std::int64_t micro_batches) {
  const auto n = static_cast<double>(layers);
  const bool embedding = stage.first() || (stage.last() && deck.model.tied);
  return n * costs.layer_state + (embedding ? costs.embedding_state : 0) + (stage.last() ? costs.head_state : 0) +
         n * costs.layer_activations * static_cast<double>(in_flight(stage, micro_batches));
}

}  // namespace

std::vector<std::int64_t> layers_of_stages(const Deck& deck, const Mesh& mesh) {
  const std::vector<Stage> stages = stages_of(mesh);
  const std::int64_t layers = deck.model.layers, micro_batches = accumulation_steps(deck, mesh.size(Axis::dp));
  TESSERA_REQUIRE(static_cast<std::int64_t>(stages.size()) <= layers, "{} stages of {} layers", stages.size(), layers);
  if (!deck.pipeline.layers.empty()) return deck.pipeline.layers;
  const Costs costs = costs_of(deck, mesh);
  const double flops = least_flops(costs, stages, layers);
  std::vector<std::int64_t> cut(stages.size(), 1);
  for (auto left = layers - static_cast<std::int64_t>(stages.size()); left > 0; --left) {
    // Each layer goes to the stage that then holds the least.
    std::size_t best = stages.size();
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t s = 0; s < stages.size(); ++s) {
      if (cut[s] >= most_layers(costs, stages[s], flops)) continue;
      if (const double bytes = bytes_with(costs, stages[s], cut[s] + 1, deck, micro_batches); bytes < least) best = s, least = bytes;
    }
    ++cut[best];
  }
  return cut;
}

Stage stage_of(const Deck& deck, const Mesh& mesh, int world_rank) {
  Stage stage{.number = coordinates_of(mesh, world_rank)[static_cast<std::size_t>(Axis::pp)], .count = mesh.size(Axis::pp), .layers = {}};
  if (stage.count == 1) return {.layers = {0, deck.model.layers}};
  const std::vector<std::int64_t> cut = layers_of_stages(deck, mesh);
  for (int s = 0; s < stage.number; ++s) stage.layers.begin += cut[static_cast<std::size_t>(s)];
  stage.layers.end = stage.layers.begin + cut[static_cast<std::size_t>(stage.number)];
  return stage;
}

std::int64_t in_flight(const Stage& stage, std::int64_t micro_batches) {
  return std::min<std::int64_t>(micro_batches, stage.count - stage.number);
}

std::vector<PipelinePhase> one_forward_one_backward(const Stage& stage, std::int64_t micro_batches, bool first_apart) {
  const std::int64_t A = micro_batches, ahead = std::min<std::int64_t>(A, stage.count - 1 - stage.number);
  std::vector<PipelinePhase> phases;
  if (first_apart && ahead > 1) phases.push_back({.name = "first warm-up", .forward = true});
  if (const std::int64_t done = static_cast<std::int64_t>(phases.size()); ahead > done)
    phases.push_back({.name = "warm-up", .forward = true, .repeat = ahead - done, .micro = done});
  // Backward passes of the micro-batches [begin, end): the step's first one starts sums, the last one ends them.
  const auto backward = [&](std::int64_t begin, std::int64_t end, bool forward, const std::string& name) {
    const std::int64_t last = end == A ? A - 1 : A;
    while (begin < end) {
      PipelinePhase phase{.name = name, .forward = forward, .backward = true, .first = begin == 0, .last = begin == last};
      phase.micro = begin, phase.ahead = forward ? ahead : 0;
      phase.repeat = phase.first || phase.last ? 1 : std::min(end, last) - begin;
      if (phase.last && A > 1) phase.name = "last " + name;
      if (phase.first && A > 1) phase.name = "first " + name;
      begin += phase.repeat;
      phases.push_back(std::move(phase));
    }
  };
  backward(0, A - ahead, true, "micro-batch");
  backward(A - ahead, A, false, "cool-down");
  return phases;
}

}  // namespace tessera
