#include "commands/plan_stages.hpp"
#include "base/log.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/build/pipeline_order.hpp"
#include "schedule/plan/remedies.hpp"
#include "schedule/plan/step_cost.hpp"

namespace tessera {
namespace {

const StagePlan& fullest(const std::vector<StagePlan>& stages) {
  return *std::ranges::max_element(stages, {}, [](const StagePlan& s) { return memory_bytes(s.plan.memory.bytes); });
}

/// "0-3, 8-11"
std::string layers_text(const Stage& stage) {
  std::vector<std::string> runs;
  for (const Range& run : stage.layers) runs.push_back(fmt::format("{}-{}", run.begin, run.end - 1));
  return fmt::format("{}", fmt::join(runs, ", "));
}

}  // namespace

std::vector<StagePlan> plan_stages(const BuildRequest& like) {
  std::vector<StagePlan> stages;
  const int each = like.mesh.ranks() / like.mesh.size(Axis::pp);
  for (int rank = 0; rank < like.mesh.ranks(); rank += each) {
    StagePlan stage{.rank = rank, .plan = plan_run(request_like(like, rank))};
    stage.micro_batches =
        most_in_flight(pipeline_order(like.deck.pipeline, stage.plan.request.stage, accumulation_steps(like.deck, like.data.size), false));
    for (const auto& of_tier : stage.plan.memory.by_category) stage.activations += of_tier[static_cast<std::size_t>(Category::activations)];
    stages.push_back(std::move(stage));
  }
  return stages;
}

Json stages_json(const BuildRequest& request, const std::vector<StagePlan>& stages) {
  auto rows = Json::array();
  for (const StagePlan& s : stages) {
    const Stage& stage = s.plan.request.stage;
    auto layers = Json::array({stage.layers.front().begin, stage.layers.front().end});
    if (stage.chunks() > 1) {
      layers = Json::array();
      for (const Range& run : stage.layers) layers.push_back({run.begin, run.end});
    }
    rows.push_back({{"stage", stage.number},
                    {"rank", s.rank},
                    {"layers", std::move(layers)},
                    {"in_flight", s.micro_batches},
                    {"activation_bytes", s.activations},
                    {"bytes", memory_bytes(s.plan.memory.bytes)},
                    {"flops", step_cost(s.plan.schedule).flops}});
  }
  return {{"even_bubble",
           even_bubble(request.deck.pipeline, static_cast<int>(stages.size()), accumulation_steps(request.deck, request.data.size))},
          {"most_bytes_per_rank", memory_bytes(fullest(stages).plan.memory.bytes)},
          {"stages", rows}};
}

void print_stages(const BuildRequest& request, const std::vector<StagePlan>& stages) {
  const std::int64_t A = accumulation_steps(request.deck, request.data.size);
  const int each = request.mesh.ranks() / request.mesh.size(Axis::pp);
  put("pipeline  {} stages, {}: {:.1f} % of a stage's time is bubble if stages are equal and transfers take no time\n", stages.size(),
      word_of(request.deck.pipeline.schedule), 100 * even_bubble(request.deck.pipeline, static_cast<int>(stages.size()), A));
  for (const StagePlan& s : stages) {
    const Stage& stage = s.plan.request.stage;
    put("  stage {:<3} ranks {:13} layers {:9}{:12} {} of {} micro-batches{} in flight; activations take up to {}; {} FLOPs; {} on each "
        "rank\n",
        stage.number, each == 1 ? fmt::format("{}", s.rank) : fmt::format("{}-{}", s.rank, s.rank + each - 1), layers_text(stage),
        stage.first()  ? ", embedding"
        : stage.last() ? ", head"
                       : "",
        s.micro_batches, A * stage.chunks(), stage.chunks() == 1 ? "" : " of a run of layers",
        human_bytes(static_cast<double>(s.activations)), human_count(step_cost(s.plan.schedule).flops),
        human_bytes(static_cast<double>(memory_bytes(s.plan.memory.bytes))));
  }
  const StagePlan& most = fullest(stages);
  put("  the fullest is stage {}; the following is of rank {}, on stage {} (--rank)\n", most.plan.request.stage.number, request.rank,
      request.stage.number);
  if (request.deck.zero.stage >= 2 && request.data.size > 1)
    put("note      ZeRO stage {} on {} data-parallel ranks: each of the {} micro-batches {}reduces all gradients of a stage; stage 1 does "
        "so once a step\n",
        request.deck.zero.stage, request.data.size, A,
        request.deck.zero.stage == 3 ? "gathers all parameters of a stage forward and again backward, and " : "");
}

bool stages_fit(const std::vector<StagePlan>& stages, const MemoryLimits& limits) {
  return std::ranges::all_of(stages,
                             [&](const StagePlan& s) { return shortfalls(s.plan.request.deck, s.plan.memory.bytes, limits).empty(); });
}

void require_stages_fit(const std::vector<StagePlan>& stages, const MemoryLimits& limits) {
  for (const StagePlan& stage : stages)
    if (const std::vector<Shortfall> lacking = shortfalls(stage.plan.request.deck, stage.plan.memory.bytes, limits); !lacking.empty())
      fail(ExitCode::memory, "stage {} (tessera plan --rank {}): {}{}", stage.plan.request.stage.number, stage.rank,
           print_shortfalls(lacking), print_remedies(find_remedies(stage.plan.request, limits), stage.plan.request.deck));
}

}  // namespace tessera
