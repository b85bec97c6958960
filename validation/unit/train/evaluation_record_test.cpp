// Which evaluation is the best, and when a run has waited long enough for a better one.
#include "train/engine/evaluation_record.hpp"

#include <gtest/gtest.h>

namespace tessera {
namespace {

EvaluationRecord after(const std::vector<double>& losses, double least = 0) {
  EvaluationRecord record;
  for (std::size_t k = 0; k < losses.size(); ++k) record.take(static_cast<std::int64_t>(10 * (k + 1)), losses[k], 64, least);
  return record;
}

TEST(EvaluationRecord, TheLowestLossIsTheBestAndOfEqualsTheFirst) {
  EXPECT_EQ(after({}).best_step, -1);
  EXPECT_EQ(after({3, 2, 4, 2}).best_step, 20);
  EXPECT_EQ(after({3, 2, 4, 2}).best, 2);
  EXPECT_EQ(after({3, 2, 4, 1.5}).best_step, 40);
}

TEST(EvaluationRecord, CountsEvaluationsSinceTheLastImprovement) {
  EXPECT_EQ(after({3}).without, 0);
  EXPECT_EQ(after({3, 3}).without, 1);
  EXPECT_EQ(after({3, 2, 2.5, 2}).without, 2);
  EXPECT_EQ(after({3, 2, 2.5, 1}).without, 0);
  EXPECT_FALSE(after({3, 4, 5}).exhausts(0));
  EXPECT_FALSE(after({3, 4, 5}).exhausts(3));
  EXPECT_TRUE(after({3, 4, 5, 6}).exhausts(3));
}

// A slow fall is an improvement once it is large enough in all; the best is the lowest all the same.
TEST(EvaluationRecord, MeasuresAnImprovementFromTheLastOne) {
  const EvaluationRecord slow = after({3, 2.75, 2.5, 2.25}, 0.625);
  EXPECT_EQ(slow.without, 0);
  EXPECT_EQ(slow.reference, 2.25);
  const EvaluationRecord small = after({3, 2.75, 2.5}, 0.5);
  EXPECT_EQ(small.without, 2) << "no more than the least is none";
  EXPECT_EQ(small.best_step, 30);
}

TEST(EvaluationRecord, OtherTargetsBeginAnew) {
  EvaluationRecord record = after({3, 2, 4});
  EXPECT_FALSE(record.take(40, 5, 65, 0));
  EXPECT_EQ(record.best_step, 40);
  EXPECT_EQ(record.without, 0);
  EXPECT_TRUE(record.take(50, 4, 65, 0));
  EXPECT_EQ(record.best_step, 50);
}

// A save that failed leaves the best checkpoint that there is.
TEST(EvaluationRecord, ABestThatWasNotSavedIsNone) {
  EvaluationRecord record = after({3, 2, 1});
  record.lose(30);
  EXPECT_EQ(record.best_step, 20);
  EXPECT_EQ(record.best, 2);
  record.take(40, 1.5, 64, 0);
  EXPECT_EQ(record.best_step, 40) << "lower than the one that is there";
  record = after({3, 2, 1});
  record.lose(20);  // a save beside the steps, which ended later
  record.lose(30);
  EXPECT_EQ(record.best_step, -1);
  record.lose(7);
  EXPECT_EQ(record.best_step, -1);
  record.take(50, 9, 64, 0);
  EXPECT_EQ(record.best_step, 50);
}

TEST(EvaluationRecord, ACheckpointHoldsAllOfIt) {
  EvaluationRecord record = after({3, 0.1, 0.3}, 0.01);
  record.before_step = -1, record.before = 0;  // what only this start knows
  EXPECT_EQ(EvaluationRecord::of(record.values()), record);
  EXPECT_EQ(io::best_step_of(record.values()), 20);
  for (const io::CheckpointValue& value : record.values()) EXPECT_TRUE(EvaluationRecord::names(value.name)) << value.name;
  EXPECT_TRUE(EvaluationRecord().values().empty());
  EXPECT_EQ(EvaluationRecord::of({}), EvaluationRecord());
  EXPECT_EQ(io::best_step_of({}), -1);
}

}  // namespace
}  // namespace tessera
