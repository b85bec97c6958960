// What a step's tasks cost, against what a token is said to cost.
#include "schedule/plan/step_cost.hpp"

#include <gtest/gtest.h>

#include "model/record/flops.hpp"
#include "schedules.hpp"

namespace tessera::step_cost_test {
namespace {

struct FlopsOfTasks {
  double products = 0, attention = 0;
};

/// FLOPs of the products of a step, and of its attention as if no key that a window lets through were masked, as the calls of its tasks
/// have them.
FlopsOfTasks flops_of_tasks(const Schedule& schedule) {
  FlopsOfTasks sum;
  for (const auto& phase : schedule.program(ProgramKind::train).phases)
    for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks) {
      const auto* run = std::get_if<RunPass>(&task.op);
      if (!run) continue;
      const SegmentPass& pass = schedule.passes[static_cast<std::size_t>(run->pass)];
      const Segment& segment = schedule.segment_of(pass);
      for (const CallRef& ref : pass.calls) {
        const Call& call = call_of(segment, ref);
        const auto* work = std::get_if<AttentionWork>(&call.work);
        // Attention's backward pass makes five products of its tiles, of which one makes scores again.
        const double flops = static_cast<double>(phase.repeat) * call.flops * (!work ? 1 : work->backward ? 2 / 2.5 * 2 : 2);
        (work ? sum.attention : sum.products) += flops;
      }
    }
  return sum;
}

TEST(StepCost, TasksMakeWhatATokenIsSaidToCost) {
  const std::vector<std::vector<std::string>> models = {
      {},
      {"model.qk_norm=true", "model.tied=true", "kernels.loss_chunk=5"},
      {"model.experts=4", "model.shared_ff_width=24"},
      {R"(model.freeze=["embedding.*", "layers.0.*", "layers.1.mlp.w_*"])"},
      {R"(model.freeze=["layers.1.*", "head.*"])"},
      {"lora.rank=4"},
      {"model.norm_placement=both", "model.attention_softcap=2", "model.logit_softcap=3"},
      {"model.norm_placement=post", "model.qk_norm=true", "model.wide_qk_norm=true", "model.activation=gelu"},
      {"model.residual_scale=0.5"},
      {"model.norm_placement=parallel", "model.norm_form=layer_norm_no_bias"},
      {"model.window=5"},
      {"model.pattern=LG", R"(model.kinds=[{ name = "L", window = 5, rope_theta = 500.0 }, { name = "G" }])"},
      {"lora.rank=2", R"(lora.targets=["layers.1.mlp.w_down"])"},
  };
  for (const std::vector<std::string>& overrides : models) {
    const BuildRequest request = test::request_of({.name = "", .overrides = overrides});
    const BatchKeys& batch = request.deck.batch;
    const auto length = static_cast<double>(batch.sequence_length), tokens = static_cast<double>(batch.global) * length;
    const FlopsPerToken token = flops_per_token(request.deck);
    const FlopsOfTasks tasks = flops_of_tasks(build_schedule(request));
    const std::string model = overrides.empty() ? "all trained" : overrides.front();
    EXPECT_GT(tasks.products, 0) << model;
    EXPECT_DOUBLE_EQ(tasks.products, token.products * tokens) << model;
    EXPECT_DOUBLE_EQ(tasks.attention, token.of_attention(length) * tokens) << model;
  }
}

}  // namespace
}  // namespace tessera::step_cost_test
