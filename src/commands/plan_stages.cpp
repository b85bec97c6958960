#include "commands/plan_stages.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/plan/remedies.hpp"
#include "schedule/plan/step_cost.hpp"

namespace tessera {
namespace {

const StagePlan& fullest(const std::vector<StagePlan>& stages) {
  return *std::ranges::max_element(stages, {}, [](const StagePlan& s) { return memory_bytes(s.plan.memory.bytes); });
}

/// Of an even cut without transfers: what of a stage's time it waits for others.
double even_bubble(const std::vector<StagePlan>& stages, std::int64_t micro_batches) {
  const auto others = static_cast<double>(stages.size() - 1);
  return others / (static_cast<double>(micro_batches) + others);
}

}  // namespace

std::vector<StagePlan> plan_stages(const BuildRequest& like) {
  std::vector<StagePlan> stages;
  const int each = like.mesh.ranks() / like.mesh.size(Axis::pp);
  for (int rank = 0; rank < like.mesh.ranks(); rank += each) {
    StagePlan stage{.rank = rank, .plan = plan_run(request_for(like.deck, like.mesh, rank, like.purpose))};
    stage.micro_batches = in_flight(stage.plan.request.stage, accumulation_steps(like.deck, like.data.size));
    for (const auto& of_tier : stage.plan.memory.by_category) stage.activations += of_tier[static_cast<std::size_t>(Category::activations)];
    stages.push_back(std::move(stage));
  }
  return stages;
}

nlohmann::ordered_json stages_json(const BuildRequest& request, const std::vector<StagePlan>& stages) {
  auto rows = nlohmann::ordered_json::array();
  for (const StagePlan& s : stages) {
    const Stage& stage = s.plan.request.stage;
    rows.push_back({{"stage", stage.number},
                    {"rank", s.rank},
                    {"layers", {stage.layers.begin, stage.layers.end}},
                    {"in_flight", s.micro_batches},
                    {"activation_bytes", s.activations},
                    {"bytes", memory_bytes(s.plan.memory.bytes)},
                    {"flops", step_cost(s.plan.schedule).flops}});
  }
  return {{"even_bubble", even_bubble(stages, accumulation_steps(request.deck, request.data.size))},
          {"most_bytes_per_rank", memory_bytes(fullest(stages).plan.memory.bytes)},
          {"stages", rows}};
}

void print_stages(const BuildRequest& request, const std::vector<StagePlan>& stages) {
  const std::int64_t A = accumulation_steps(request.deck, request.data.size);
  const int each = request.mesh.ranks() / request.mesh.size(Axis::pp);
  fmt::print("pipeline  {} stages, {}: {:.1f} % of a stage's time is bubble where stages are even and transfers take none\n", stages.size(),
             request.deck.pipeline.schedule, 100 * even_bubble(stages, A));
  for (const StagePlan& s : stages) {
    const Stage& stage = s.plan.request.stage;
    fmt::print(
        "  stage {:<3} ranks {:13} layers {:9}{:12} {} of {} micro-batches in flight; activations take up to {}; {} FLOPs; {} on each "
        "rank\n",
        stage.number, each == 1 ? fmt::format("{}", s.rank) : fmt::format("{}-{}", s.rank, s.rank + each - 1),
        fmt::format("{}-{}", stage.layers.begin, stage.layers.end - 1),
        stage.first()  ? ", embedding"
        : stage.last() ? ", head"
                       : "",
        s.micro_batches, A, human_bytes(static_cast<double>(s.activations)), human_count(step_cost(s.plan.schedule).flops),
        human_bytes(static_cast<double>(memory_bytes(s.plan.memory.bytes))));
  }
  const StagePlan& most = fullest(stages);
  fmt::print("  the fullest is stage {}; what follows is of rank {}, on stage {} (--rank)\n", most.plan.request.stage.number, request.rank,
             request.stage.number);
  if (request.deck.zero.stage >= 2 && request.data.size > 1)
    fmt::print(
        "note      ZeRO stage {} on {} data-parallel ranks: each of the {} micro-batches {}reduces all gradients of a stage; stage 1 does "
        "so once a step\n",
        request.deck.zero.stage, request.data.size, A,
        request.deck.zero.stage == 3 ? "gathers all parameters of a stage forward and again backward, and " : "");
}

void require_stages_fit(const std::vector<StagePlan>& stages, const MemoryLimits& limits) {
  for (const StagePlan& stage : stages)
    if (const std::vector<Shortfall> lacking = shortfalls(stage.plan.request.deck, stage.plan.memory.bytes, limits); !lacking.empty())
      fail(ExitCode::memory, "stage {} (tessera plan --rank {}): {}{}", stage.plan.request.stage.number, stage.rank,
           print_shortfalls(lacking), print_remedies(find_remedies(stage.plan.request, limits), stage.plan.request.deck));
}

}  // namespace tessera
