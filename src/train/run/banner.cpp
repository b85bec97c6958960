#include "train/run/banner.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "base/log.hpp"
#include "base/version.hpp"
#include "deck/ramp.hpp"
#include "deck/schema/given.hpp"
#include "model/record/flops.hpp"
#include "model/table/frozen.hpp"
#include "model/table/lora.hpp"
#include "model/towers/towers.hpp"
#include "optimizer/groups.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/build/pipeline_order.hpp"
#include "schedule/plan/limits.hpp"
#include "schedule/plan/step_cost.hpp"
#include "topology/devices/gpu_environment.hpp"
#include "train/engine/program_identity.hpp"

namespace tessera {

namespace {

/// A line of the plan. `brief`: the log shows it too.
struct PlanLine {
  std::string text;
  bool brief = true;
};

void add_tensors(std::vector<PlanLine>& lines, const BannerFacts& f) {
  const Deck& deck = f.parsed.deck;
  const std::vector<Parameter> table = f.engine.layout().model_table();
  const auto add = [&](const char* name, const std::string& text, bool brief = true) {
    if (!text.empty()) lines.push_back({fmt::format("{:11} {}", name, text), brief});
  };
  add("model", fmt::format("{} parameters in {} units; {}", human_count(static_cast<double>(parameter_count(table))),
                           f.engine.layout().units.size(), describe_flops(deck)));
  add("lora", describe_lora(deck.model, table));
  add("fp8", describe_fp8(table, deck.precision));
  add("frozen", describe_frozen(table));
  add("towers", describe_towers(deck));
  for (const std::string& line : describe_groups(deck.optimizer, table)) add("optimizer", line, false);
}

void add_batch(std::vector<PlanLine>& lines, const BannerFacts& f) {
  const Deck& deck = f.parsed.deck;
  const auto add = [&](const char* name, const std::string& text) { lines.push_back({fmt::format("{:11} {}", name, text)}); };
  add("batch", describe_batch(deck, f.engine.data().size));
  for (const std::string& line : describe_ramp(deck, f.engine.data().size)) add("phases", line);
  const BuildRequest& request = f.engine.planned().request;
  if (const Stage& stage = request.stage; stage.count > 1)
    add("pipeline", fmt::format("{} stages of {} layers, {}; at best {:.1f} % of a step is bubble", stage.count,
                                fmt::join(layers_of_stages(deck, request.mesh), ", "), word_of(deck.pipeline.schedule),
                                100 * even_bubble(deck.pipeline, stage.count, f.engine.accumulation())));
  add("recompute", describe_recompute(request, recompute_gain(request, f.engine.schedule(), f.engine.plan())));
  if (const std::string how = f.engine.how_disks_work(); !how.empty()) add("disk", how);
}

/// A tier in a line, its largest parts first: "host 42.53 MiB: activations 24.64 MiB, state 5.89 MiB".
std::string brief_memory(const MemoryPlan& plan) {
  std::string text;
  for (std::size_t t = 0; t < tier_count; ++t) {
    if (plan.bytes[t] == 0) continue;
    std::vector<std::size_t> parts;
    for (std::size_t c = 0; c < category_count; ++c)
      if (plan.by_category[t][c] > 0) parts.push_back(c);
    std::ranges::stable_sort(parts, std::greater<>(), [&](std::size_t c) { return plan.by_category[t][c]; });
    std::string of;
    for (const std::size_t c : parts)
      of += fmt::format("{}{} {}", of.empty() ? "" : ", ", name_of(static_cast<Category>(c)),
                        human_bytes(static_cast<double>(plan.by_category[t][c])));
    text += fmt::format("\n  {:8}  {}: {}", name_of(static_cast<Tier>(t)), human_bytes(static_cast<double>(plan.bytes[t])), of);
  }
  return text;
}

std::vector<PlanLine> plan_lines(const BannerFacts& f) {
  const Deck& deck = f.parsed.deck;
  std::vector<PlanLine> lines;
  lines.push_back({fmt::format("ranks       {}", f.ranks)});
  lines.push_back(
      {fmt::format("mesh        {}; collectives by {}; lanes {}", f.mesh, f.path, f.lanes == LaneMode::threads ? "on threads" : "inline")});
  lines.push_back({fmt::format("machine     {} threads a rank; {}; {}", f.threads, f.binding, f.mfu_of)});
  if (deck.run.device == RunDevice::cuda)
    for (const std::string& line : describe_gpu_environment()) lines.push_back({"environment " + line, false});
  for (const std::string& line : f.attention) lines.push_back({"kernels     " + line, false});
  add_tensors(lines, f);
  add_batch(lines, f);
  return lines;
}

std::string all_phases(const BannerFacts& f) {
  if (phases_of(f.parsed.deck) == 1) return "";
  return fmt::format("  all phases {:>10}   (what the largest needs of each tier is allocated; above is the first)\n",
                     human_bytes(static_cast<double>(memory_bytes(f.engine.room()))));
}

std::string program_line() { return fmt::format("Tessera {}: {}", version(), describe(program_identity())); }

constexpr std::size_t log_width = 140;

}  // namespace

void print_banner(const BannerFacts& f) {
  info("{}", program_line());
  const std::vector<std::string> given = given_keys(f.parsed, log_width);
  info("deck        what differs from the defaults:\n  {}", fmt::join(given, "\n  "));
  for (const std::string& line : f.parsed.resolved) info("auto: {}", line);
  for (const PlanLine& line : plan_lines(f))
    if (line.brief) info("{}", line.text);
  std::string memory = "memory      of this rank, planned and allocated" + brief_memory(f.engine.plan()) + "\n" + all_phases(f);
  memory.pop_back();
  info("{}", memory);
}

std::string whole_plan(const BannerFacts& f) {
  std::string text = program_line() + "\n\n";
  for (const std::string& line : f.parsed.resolved) text += fmt::format("auto: {}\n", line);
  for (const PlanLine& line : plan_lines(f)) text += line.text + "\n";
  return text + "memory      of rank 0, planned and allocated\n" + print_memory(f.engine.schedule(), f.engine.plan()) + all_phases(f);
}

}  // namespace tessera
