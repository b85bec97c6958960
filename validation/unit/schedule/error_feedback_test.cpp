// What a rank keeps of gradients in blocks of codes (LoCo): a buffer a hop, cleared before the first step, and read as zero at most once
// a step.
#include <gtest/gtest.h>

#include <map>

#include "schedules.hpp"

namespace tessera::error_feedback_test {
namespace {

constexpr int ranks = 4;

Schedule schedule_with(std::vector<std::string> overrides, int rank) {
  overrides.insert(overrides.end(), {"zero.stage=3", "zero.quantized_gradients=true", "zero.param_persistence_threshold=0", "batch.micro=1",
                                     "batch.global=12"});
  const Deck deck = test::tiny_deck(overrides, ranks);
  return build_schedule(request_for(deck, make_mesh(deck, ranks), rank, Purpose::training));
}

/// Of those whose name begins so.
std::map<std::string, const Buffer*> buffers_of(const Schedule& schedule, const std::string& prefix) {
  std::map<std::string, const Buffer*> found;
  for (const Buffer& buffer : schedule.buffers)
    if (buffer.name.starts_with(prefix)) found[buffer.name.substr(prefix.size())] = &buffer;
  return found;
}

TEST(ErrorFeedback, EachHopKeepsAnErrorOfAllItsTerms) {
  for (const std::int64_t group : {1, 2})
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string groups = "zero.hpz_partition_size=" + std::to_string(group);
      const Schedule kept = schedule_with({"zero.error_feedback.enabled=true", groups}, rank), without = schedule_with({groups}, rank);
      EXPECT_TRUE(buffers_of(without, "gradient_error.").empty());
      const auto of_sums = buffers_of(kept, "gradient_error.4."), of_groups = buffers_of(kept, "gradient_error.8."),
                 sent = buffers_of(kept, "sent_blocks.4.");
      ASSERT_FALSE(sent.empty());
      EXPECT_EQ(of_sums.size(), sent.size());
      EXPECT_EQ(of_groups.size(), group == 1 ? 0 : sent.size());
      for (const auto& [unit, buffer] : sent) {
        const std::int64_t elements = buffer->bytes / 132 * 256;  // that this rank sends in 4 bits
        EXPECT_EQ(of_sums.at(unit)->bytes, elements / 256 * 260) << unit;
        EXPECT_EQ(of_sums.at(unit)->life, Life::run);
        if (group == 2) {
          EXPECT_EQ(of_groups.at(unit)->bytes, 2 * of_sums.at(unit)->bytes) << unit;
        }
      }
    }
}

TEST(ErrorFeedback, ErrorsBeginAtZeroOnceAStepAndBeforeTheFirst) {
  const Schedule schedule = schedule_with({"zero.error_feedback.enabled=true", "zero.error_feedback.reset_interval=7"}, 1);
  std::map<int, std::int64_t> first, all, cleared;
  for (const auto& phase : schedule.program(ProgramKind::train).phases)
    for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks)
      if (const auto* op = std::get_if<EncodeWithError>(&task.op)) {
        EXPECT_EQ(op->interval, 7);
        EXPECT_FLOAT_EQ(op->beta, 0.8f);
        EXPECT_TRUE(op->first || all[task.uses[2].buffer] > 0) << task.name;
        first[task.uses[2].buffer] += op->first ? phase.repeat : 0;
        all[task.uses[2].buffer] += phase.repeat;
      }
  for (const auto& phase : schedule.program(ProgramKind::publish).phases)
    for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks)
      if (std::holds_alternative<Zero>(task.op))
        for (const Use& use : task.uses) cleared[use.buffer] += use.bytes;
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(cleared.size(), all.size());
  for (const auto& [buffer, count] : all) {
    EXPECT_EQ(count, 3);
    EXPECT_EQ(first[buffer], 1);
    EXPECT_EQ(cleared[buffer], schedule.buffers[static_cast<std::size_t>(buffer)].bytes);
  }
}

}  // namespace
}  // namespace tessera::error_feedback_test
