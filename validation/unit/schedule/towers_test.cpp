// A tower beside the model (model/towers): its bytes, and that it leaves the model's own tasks as they are, over all axes.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "model/record/flops.hpp"
#include "model/towers/towers.hpp"
#include "schedule/plan/step_cost.hpp"
#include "schedules.hpp"
#include "validation/unit/sample.hpp"

namespace tessera::towers_test {
namespace {

std::vector<test::Setting> training_settings() {
  std::vector<test::Setting> all;
  for (const auto& some : {test::settings(), test::tensor_settings(), test::context_settings(), test::pipeline_settings(),
                           test::ordered_settings(), test::expert_settings(), test::experts_beside_settings()})
    std::ranges::copy_if(some, std::back_inserter(all), &test::Setting::training);
  return all;
}

test::Setting with_reference(test::Setting s) {
  s.overrides.emplace_back("reference.model=start");
  return s;
}

bool is_of_reference(const std::string& name) { return name.find("reference") != std::string::npos; }

/// "section: task" of the model's own, sorted, with what each computes and moves: but for those that bring weights, which stay or go as
/// others need their place.
std::vector<std::string> own_tasks(const Schedule& schedule) {
  constexpr std::string_view brings[] = {"gather", "upload", "read", "encode", "decode"};
  std::vector<std::string> lines;
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks)
      if (!is_of_reference(task.name) && std::ranges::none_of(brings, [&](std::string_view verb) { return task.name.starts_with(verb); }))
        lines.push_back(fmt::format("{}: {} {} {}", section.name, task.name, task.flops, task.bytes_moved));
  std::ranges::sort(lines);
  return lines;
}

TEST(Towers, UseTheBytesThatArePlanned) {
  const std::vector<test::Setting> all = training_settings();
  test::Sample sample;
  for (const std::size_t s : sample.of(all.size(), 40)) {
    const Schedule schedule = test::schedule_of(with_reference(all[s]));
    const MemoryPlan plan = place(schedule);
    EXPECT_EQ(touched_bytes(schedule, plan), plan.bytes) << all[s].name << ", with " << sample.describe();
  }
}

TEST(Towers, LeaveTheModelsTasksAsTheyAre) {
  const std::vector<test::Setting> all = training_settings();
  test::Sample sample;
  for (const std::size_t s : sample.of(all.size(), 40))
    EXPECT_EQ(own_tasks(test::schedule_of(with_reference(all[s]))), own_tasks(test::schedule_of(all[s])))
        << all[s].name << ", with " << sample.describe();
}

// No gradients, no moments, no fp32 copy, nothing that waits for a backward pass.
TEST(Towers, OfAReferenceKeepParametersAlone) {
  const std::set<Category> kept = {Category::parameters, Category::packed, Category::scalars};
  const std::vector<test::Setting> all = training_settings();
  test::Sample sample;
  for (const std::size_t s : sample.of(all.size(), 40)) {
    const test::Setting setting = with_reference(all[s]);
    const BuildRequest request = test::request_of(setting);
    const Schedule schedule = build_schedule(request);
    std::int64_t parameters = 0;
    for (const Buffer& buffer : schedule.buffers) {
      if (!is_of_reference(buffer.name)) continue;
      if (buffer.category == Category::parameters) parameters += buffer.bytes;
      if (buffer.life == Life::run && buffer.category != Category::activations) {
        EXPECT_TRUE(kept.contains(buffer.category)) << buffer.name << " of " << setting.name;
      }
      EXPECT_NE(buffer.category, Category::gradients) << buffer.name << " of " << setting.name;
      EXPECT_FALSE(buffer.name.starts_with("in_flight")) << buffer.name << " of " << setting.name;
    }
    // As much as of the model itself: a whole copy, or a shard.
    std::int64_t of_model = 0;
    for (const Buffer& buffer : schedule.buffers)
      if (buffer.category == Category::parameters && !is_of_reference(buffer.name)) of_model += buffer.bytes;
    EXPECT_EQ(parameters, of_model) << setting.name;
  }
}

// Where adapters begin with B = 0, the reference is the frozen base itself.
TEST(Towers, OfAReferenceBesideAdaptersHaveNoTensors) {
  const test::Setting lora{
      .name = "lora", .overrides = {"lora.rank=2", "zero.stage=3", "zero.param_persistence_threshold=0"}, .rank = 1, .ranks = 2};
  const test::Setting both = with_reference(lora);
  EXPECT_EQ(test::request_of(both).layout.units.size(), test::request_of(lora).layout.units.size());
  const Schedule schedule = test::schedule_of(both);
  EXPECT_EQ(schedule.towers.size(), 2U);
  EXPECT_EQ(touched_bytes(schedule, place(schedule)), place(schedule).bytes);
  EXPECT_EQ(own_tasks(schedule), own_tasks(test::schedule_of(lora)));
}

// An evaluation and a text have the model alone.
TEST(Towers, AreOfTrainingRuns) {
  test::Setting evaluation{.name = "evaluation", .overrides = {}, .evaluation = 2, .training = false};
  EXPECT_EQ(test::schedule_of(with_reference(evaluation)).hash(), test::schedule_of(evaluation).hash());
}

// A token of the reference costs what its forward pass does: a third of the model's step, whose backward pass costs twice as much.
TEST(Towers, CountInFlops) {
  const Deck alone = test::tiny_deck({"precision.compute=fp32"}),
             beside = test::tiny_deck({"precision.compute=fp32", "reference.model=start"});
  const FlopsPerToken own = flops_per_token(alone), all = flops_per_token(beside);
  EXPECT_NEAR((all.products - own.products) / own.products, 1.0 / 3, 0.02);
  EXPECT_NEAR((all.of_attention(8) - own.of_attention(8)) / own.of_attention(8), 1.0 / 3, 0.02);
  const test::Setting setting{.name = "cost", .overrides = {"activation.recompute=none"}};
  const double cost = step_cost(test::schedule_of(setting)).flops, with = step_cost(test::schedule_of(with_reference(setting))).flops;
  EXPECT_NEAR((with - cost) / cost, 1.0 / 3, 0.03);
}

}  // namespace
}  // namespace tessera::towers_test
