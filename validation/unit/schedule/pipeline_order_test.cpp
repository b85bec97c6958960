// The orders of a pipeline's stages, as lists of phases.
#include "schedule/build/pipeline_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace tessera::pipeline_order_test {
namespace {

Stage stage(int number, int count, int chunks = 1) {
  return {.number = number, .count = count, .layers = std::vector<Range>(static_cast<std::size_t>(chunks))};
}

PipelineKeys keys(PipelineSchedule schedule, int chunks = 2) { return {.schedule = schedule, .virtual_stages = chunks}; }

/// What a stage does of a kind: chunk and micro-batch, in order.
using Done = std::vector<std::pair<int, std::int64_t>>;
struct Walked {
  Done forward, backward, weights;
};

/// Every repetition; the marks of the first and last micro-batch must be right, and what comes later must have come.
Walked walk(const std::vector<PipelinePhase>& phases, std::int64_t A) {
  Walked done;
  const auto has = [](const Done& list, int chunk, std::int64_t micro) {
    return std::ranges::find(list, std::pair(chunk, micro)) != list.end();
  };
  for (const PipelinePhase& p : phases)
    for (std::int64_t r = 0; r < p.repeat; ++r) {
      const std::int64_t micro = p.micro + r;
      if (p.forward) done.forward.push_back({p.forward_chunk, micro + p.ahead});
      if (p.backward) {
        EXPECT_TRUE(has(done.forward, p.backward_chunk, micro)) << p.name;
        EXPECT_EQ(p.first, micro == 0) << p.name;
        EXPECT_EQ(p.last, micro == A - 1) << p.name;
        done.backward.push_back({p.backward_chunk, micro});
      }
      if (p.weights) {
        EXPECT_TRUE(has(done.backward, p.backward_chunk, micro - p.behind)) << p.name;
        EXPECT_EQ(p.first_weights, micro - p.behind == 0) << p.name;
        EXPECT_EQ(p.last_weights, micro - p.behind == A - 1) << p.name;
        done.weights.push_back({p.backward_chunk, micro - p.behind});
      }
    }
  return done;
}

Done in_order(std::int64_t A) {
  Done all;
  for (std::int64_t m = 0; m < A; ++m) all.push_back({0, m});
  return all;
}

// A section is built for each name.
void expect_alike_by_name(const std::vector<PipelinePhase>& phases) {
  std::map<std::string, const PipelinePhase*> known;
  for (const PipelinePhase& p : phases) {
    const auto [at, fresh] = known.try_emplace(p.name, &p);
    const PipelinePhase& q = *at->second;
    const auto kind = [](const PipelinePhase& x) {
      return std::tuple(x.forward, x.backward, x.weights, x.first, x.last, x.first_weights, x.last_weights, x.ahead, x.behind,
                        x.forward_chunk, x.backward_chunk);
    };
    EXPECT_EQ(kind(p), kind(q)) << p.name;
  }
}

TEST(OneForwardOneBackward, EachMicroBatchOnceInOrder) {
  for (int stages = 1; stages <= 5; ++stages)
    for (int number = 0; number < stages; ++number)
      for (std::int64_t A = 1; A <= 9; ++A)
        for (const bool apart : {false, true}) {
          const auto phases = pipeline_order(keys(PipelineSchedule::one_forward_one_backward), stage(number, stages), A, apart);
          const Walked done = walk(phases, A);
          EXPECT_EQ(done.forward, in_order(A));
          EXPECT_EQ(done.backward, in_order(A));
          EXPECT_TRUE(done.weights.empty());
          EXPECT_EQ(in_flight(phases, 1)[0].to_backward, std::min<std::int64_t>(A, stages - number));
          EXPECT_EQ(in_flight(phases, 1)[0].crosses, number + 1 < stages);
          EXPECT_EQ(most_in_flight(phases), std::min<std::int64_t>(A, stages - number));
          if (apart) {
            EXPECT_EQ(phases.front().repeat, 1);
          }
          EXPECT_LE(phases.size(), 7u);
          expect_alike_by_name(phases);
        }
}

// Gradients of weights come as many micro-batches late as there are stages before this one, so each stage has as many in flight.
TEST(ZeroBubble, WeightsComeAfterInputsAndAllStagesHoldAsMuch) {
  for (int stages = 2; stages <= 5; ++stages)
    for (int number = 0; number < stages; ++number)
      for (std::int64_t A = 1; A <= 9; ++A) {
        const auto phases = pipeline_order(keys(PipelineSchedule::zero_bubble), stage(number, stages), A, false);
        const Walked done = walk(phases, A);
        EXPECT_EQ(done.forward, in_order(A));
        EXPECT_EQ(done.backward, in_order(A));
        EXPECT_EQ(done.weights, number == 0 ? Done{} : in_order(A));
        const InFlight flight = in_flight(phases, 1)[0];
        EXPECT_EQ(flight.to_backward, std::min<std::int64_t>(A, stages - number));
        EXPECT_EQ(flight.to_weights, number == 0 ? 0 : std::min<std::int64_t>(A, stages));
        EXPECT_EQ(flight.backward_to_weights, number == 0 ? 0 : std::min<std::int64_t>(A, number + 1));
        EXPECT_EQ(most_in_flight(phases), std::min<std::int64_t>(A, stages));
        expect_alike_by_name(phases);
      }
}

TEST(Interleaved, EachMicroBatchOnceThroughEachChunk) {
  for (int stages = 2; stages <= 4; ++stages)
    for (int chunks = 2; chunks <= 4; ++chunks)
      for (std::int64_t A = 1; A <= 13; ++A) {
        Walked first;
        for (int number = 0; number < stages; ++number)
          for (const bool apart : {false, true}) {
            const auto phases = pipeline_order(keys(PipelineSchedule::interleaved, chunks), stage(number, stages, chunks), A, apart);
            const Walked done = walk(phases, A);
            // All stages go through chunks and micro-batches alike: what one sends, the next expects.
            if (first.forward.empty()) first = done;
            EXPECT_EQ(done.forward, first.forward);
            EXPECT_EQ(done.backward, first.backward);
            ASSERT_EQ(std::ssize(done.forward), A * chunks);
            ASSERT_EQ(std::ssize(done.backward), A * chunks);
            for (int c = 0; c < chunks; ++c)
              for (const Done* list : {&done.forward, &done.backward}) {
                Done of_chunk;
                std::ranges::copy_if(*list, std::back_inserter(of_chunk), [&](const auto& at) { return at.first == c; });
                EXPECT_TRUE(std::ranges::is_sorted(of_chunk)) << "gradients are added in the order of the micro-batches";
                EXPECT_EQ(std::ssize(of_chunk), A);
              }
            if (apart) {
              EXPECT_EQ(phases.front().repeat, 1);
              EXPECT_EQ(std::ranges::count(phases, phases.front().name, &PipelinePhase::name), 1);
            }
            expect_alike_by_name(phases);
          }
        // The first stage holds the most: its forward passes before the first backward one, and one more.
        const auto phases = pipeline_order(keys(PipelineSchedule::interleaved, chunks), stage(0, stages, chunks), A, false);
        EXPECT_EQ(most_in_flight(phases), std::min(A * chunks, 2 * (stages - 1) + (chunks - 1) * group_size(A, stages) + 1));
      }
}

TEST(Interleaved, GroupsHaveAsManyAsThereAreStagesOrFewMore) {
  EXPECT_EQ(group_size(12, 4), 4);
  EXPECT_EQ(group_size(13, 4), 5);
  EXPECT_EQ(group_size(7, 4), 7);
  EXPECT_EQ(group_size(3, 4), 3);
  EXPECT_EQ(group_size(97, 8), 9);
}

TEST(Bubble, OfEvenStages) {
  EXPECT_DOUBLE_EQ(even_bubble(keys(PipelineSchedule::one_forward_one_backward), 4, 9), 3.0 / 12);
  EXPECT_DOUBLE_EQ(even_bubble(keys(PipelineSchedule::zero_bubble), 4, 9), 1.0 / 10);
  EXPECT_DOUBLE_EQ(even_bubble(keys(PipelineSchedule::interleaved, 3), 4, 9), 1.0 / 10);
}

}  // namespace
}  // namespace tessera::pipeline_order_test
