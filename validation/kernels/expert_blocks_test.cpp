#include "base/check.hpp"
#include "expert_blocks_cases.hpp"

namespace tessera::kernels::testing::expert_blocks_test {
namespace {

std::vector<std::uint32_t> labelled(const ExpertBlocksCase& c, const Sent& sent) {
  auto labels = poisoned<std::uint32_t>(c.all_labels());
  label_blocks({}, {.labels = labels.data(),
                    .offsets = sent.offsets.data(),
                    .sources = sent.sources.data(),
                    .weights = sent.weights.data(),
                    .k = c.k,
                    .slots = c.slots,
                    .blocks = c.blocks()});
  return labels;
}

Arrived arrived(const ExpertBlocksCase& c, const std::vector<std::uint32_t>& labels) {
  Arrived r{poisoned<std::int32_t>(c.E + 1), poisoned<std::int32_t>(c.all_rows()), poisoned<std::int32_t>(c.all_rows()),
            poisoned<float>(c.all_rows())};
  plan_arrivals({}, {.offsets = r.offsets.data(),
                     .order = r.order.data(),
                     .places = r.places.data(),
                     .weights = r.weights.data(),
                     .labels = labels.data(),
                     .blocks = c.blocks()});
  return r;
}

std::vector<float> collected(const ExpertBlocksCase& c, const std::vector<float>& rows, const std::vector<std::int32_t>& places,
                             std::vector<float> out) {
  collect_rows({}, {.out = out.data(), .rows = rows.data(), .places = places.data(), .M = c.M, .k = c.k, .slots = c.slots});
  return out;
}

TEST(ExpertBlocks, LabelsAreCountsAndWeights) {
  for (const ExpertBlocksCase& c : expert_blocks_cases) {
    const Sent sent(c);
    EXPECT_EQ(labelled(c, sent), labels_by_definition(c, sent)) << c.N << " blocks of " << c.rows;
  }
}

TEST(ExpertBlocks, ArrivalsAreSortedByExpertAndRank) {
  for (const ExpertBlocksCase& c : expert_blocks_cases) {
    SCOPED_TRACE(::testing::Message() << c.N << " blocks of " << c.rows << " for " << c.E);
    const std::vector<std::uint32_t> labels = labels_by_definition(c, Sent(c));
    const Arrived got = arrived(c, labels), expected = arrived_by_definition(c, labels);
    EXPECT_EQ(got.offsets, expected.offsets);
    EXPECT_EQ(got.order, expected.order);
    EXPECT_EQ(got.places, expected.places);
    EXPECT_EQ(digest(got.weights), digest(expected.weights));
  }
}

TEST(ExpertBlocks, NumbersOfRowsAreCollectedByChoice) {
  for (const ExpertBlocksCase& c : expert_blocks_cases) {
    const auto rows = random_values<float>(c.all_rows(), 4), before = random_values<float>(c.M * c.slots, 5);
    const auto places = random_places(c);
    EXPECT_EQ(collected(c, rows, places, before), collected_by_definition(c, rows, places, before));
  }
}

TEST(ExpertBlocks, MoreRowsThanBlocksHaveAreRefused) {
  const ExpertBlocksCase c{2, 1, 3, 1, 1, 1};
  std::vector<std::uint32_t> labels(at(c.all_labels()), 0);
  labels[0] = 7;
  EXPECT_THROW(arrived(c, labels), Error);
}

TEST(ExpertBlocks, SameBitsOnAnyThreads) {
  const ExpertBlocksCase large{4, 8, 9000, 9000, 2, 3};
  const Sent sent(large);
  const auto rows = random_values<float>(large.all_rows(), 4), before = random_values<float>(large.M * large.slots, 5);
  const auto places = random_places(large);
  expect_same_bits([&] {
    const std::vector<std::uint32_t> labels = labelled(large, sent);
    const Arrived r = arrived(large, labels);
    return digest(labels, r.offsets, r.order, r.places, r.weights, collected(large, rows, places, before));
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::expert_blocks_test
