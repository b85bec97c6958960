// tessera plan DECK: what a run would do and need, without running or allocating anything.
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/limits.hpp"
#include "commands/commands.hpp"
#include "kernels/parallel.hpp"
#include "schedule/build/builder.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/plan/memory_plan.hpp"
#include "schedule/plan/step_cost.hpp"
#include "train/device.hpp"

namespace tessera {
namespace {

struct PlanOptions {
  std::string path;
  std::vector<std::string> overrides;
  int ranks = 1, ranks_per_node = 0, threads = 0;
  bool schedule = false, json = false;
};

std::int64_t total_bytes(const MemoryPlan& plan) {
  std::int64_t sum = 0;
  for (std::int64_t b : plan.bytes) sum += b;
  return sum;
}

nlohmann::ordered_json plan_json(const PlanOptions& o, const BuildRequest& request, const Schedule& schedule, const MemoryPlan& plan) {
  const StepCost cost = step_cost(schedule);
  nlohmann::ordered_json tiers;
  for (std::size_t t = 0; t < tier_count; ++t) {
    if (plan.bytes[t] == 0) continue;
    nlohmann::ordered_json categories;
    for (std::size_t c = 0; c < category_count; ++c)
      if (plan.by_category[t][c] > 0) categories[name_of(static_cast<Category>(c))] = plan.by_category[t][c];
    tiers[std::string(name_of(static_cast<Tier>(t)))] = {
        {"bytes", plan.bytes[t]}, {"persistent", plan.persistent[t]}, {"transient", plan.transient[t]}, {"categories", categories}};
  }
  const FlopsPerToken flops = flops_per_token(schedule.shape);
  return {{"deck", o.path},
          {"ranks", request.data.size},
          {"zero_stage", request.deck.zero.stage},
          {"parameters", parameter_count(request.layout.table)},
          {"units", request.layout.units.size()},
          {"micro_batches_per_rank", accumulation_steps(request.deck, request.data.size)},
          {"flops_per_token", {{"full", flops.full}, {"causal", flops.causal}}},
          {"bytes_per_rank", total_bytes(plan)},
          {"tiers", tiers},
          {"step", {{"tasks", cost.tasks}, {"flops", cost.flops}, {"bytes_moved", cost.bytes_moved}}},
          {"recompute",
           {{"mode", request.deck.activation.recompute},
            {"every", request.deck.activation.every},
            {"flops", cost.remade_flops},
            {"bytes_saved", recompute_gain(request, schedule, plan).bytes_saved}}},
          {"schedule_hash", schedule.hash().hex()}};
}

void print_plan(const BuildRequest& request, const Schedule& schedule, const MemoryPlan& plan) {
  const StepCost cost = step_cost(schedule);
  const FlopsPerToken flops = flops_per_token(schedule.shape);
  fmt::print("model     {} parameters in {} units; {} FLOPs a token (causal: {})\n",
             human_count(static_cast<double>(parameter_count(request.layout.table))), request.layout.units.size(), human_count(flops.full),
             human_count(flops.causal));
  fmt::print("mesh      {} data-parallel ranks, ZeRO stage {}\n", request.data.size, request.deck.zero.stage);
  fmt::print("batch     {}\n", describe_batch(request.deck, request.data.size));
  fmt::print("step      {} tasks, {} FLOPs and {} moved by collectives, on each rank\n", cost.tasks, human_count(cost.flops),
             human_bytes(cost.bytes_moved));
  fmt::print("recompute {}\n", describe_recompute(request.deck, recompute_gain(request, schedule, plan)));
  fmt::print("memory    {} on each rank\n{}", human_bytes(static_cast<double>(total_bytes(plan))), print_memory(schedule, plan));
}

int run(const PlanOptions& o) {
  const ParsedDeck parsed = parse_deck(o.path, o.overrides, o.ranks);
  const Deck deck = require_deck(parsed);
  const int per_node = o.ranks_per_node > 0 ? o.ranks_per_node : o.ranks;
  const int threads = o.threads > 0 ? o.threads
                      : deck.run.threads > 0
                          ? static_cast<int>(deck.run.threads)
                          : std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / per_node, 1, most_threads);
  kernels::plan_for_threads(threads);
  const BuildRequest request = request_for(deck, make_mesh(deck.mesh, o.ranks), 0, Purpose::training);
  const Schedule schedule = build_schedule(request);
  const MemoryPlan plan = place(schedule);
  if (o.json) {
    auto out = plan_json(o, request, schedule, plan);
    out["threads_per_rank"] = threads;
    if (o.schedule) out["schedule"] = print_schedule(schedule);
    fmt::print("{}\n", out.dump(2));
    return 0;
  }
  for (const std::string& line : parsed.resolved) fmt::print("auto      {}\n", line);
  if (deck.run.device == "auto") fmt::print("auto      run.device: planned for the host; run.device=cuda plans for a GPU\n");
  print_plan(request, schedule, plan);
  if (o.schedule) fmt::print("\n{}", print_schedule(schedule));
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Chosen& chosen) {
  CLI::App* command =
      app.add_subcommand("plan", "Memory, FLOPs, traffic and tasks of a run, before it runs; allocates nothing and needs no MPI");
  auto options = std::make_shared<PlanOptions>();
  command->add_option("DECK", options->path, "TOML file")->required();
  command->add_option("key=value", options->overrides, "Overrides, for example zero.stage=3; applied in order");
  command->add_option("--ranks", options->ranks, "Data-parallel ranks of the launch")->check(CLI::Range(1, 1000000))->capture_default_str();
  command->add_option("--ranks-per-node", options->ranks_per_node, "Ranks that share a node's cores; 0: all")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  command
      ->add_option("--threads", options->threads,
                   "Threads a rank computes with (workspace depends on it); 0: this machine's cores over the ranks of a node")
      ->check(CLI::Range(0, most_threads))
      ->capture_default_str();
  command->add_flag("--schedule", options->schedule, "Print every task with its lane and buffers");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "Examples:\n  tessera plan inputs/quickstart.toml --ranks 4\n  tessera plan inputs/train_70b.toml --ranks 64 --ranks-per-node 8 "
      "--json");
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace tessera
