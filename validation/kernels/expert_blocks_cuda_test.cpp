#include "device_array.hpp"
#include "expert_blocks_cases.hpp"

namespace tessera::kernels::testing::expert_blocks_cuda_test {
namespace {

class ExpertBlocksCuda : public OnDevice {};

/// Labels, what comes of them, and what is collected.
struct Results {
  std::vector<std::uint32_t> labels;
  Arrived arrived;
  std::vector<float> collected;
};

Results on_device(const ExpertBlocksCase& c, const Sent& sent, const std::vector<float>& of_rows, const std::vector<float>& before,
                  const std::vector<std::int32_t>& of_choices) {
  DeviceArray<std::uint32_t> labels(c.all_labels());
  DeviceArray<std::int32_t> sent_offsets(sent.offsets), sources(sent.sources), offsets(c.E + 1), order(c.all_rows()), places(c.all_rows()),
      choices(of_choices);
  DeviceArray<float> sent_weights(sent.weights), weights(c.all_rows()), rows(of_rows), out(before);
  cuda::label_blocks({}, {.labels = labels.data(),
                          .offsets = sent_offsets.data(),
                          .sources = sources.data(),
                          .weights = sent_weights.data(),
                          .k = c.k,
                          .slots = c.slots,
                          .blocks = c.blocks()});
  cuda::plan_arrivals({}, {.offsets = offsets.data(),
                           .order = order.data(),
                           .places = places.data(),
                           .weights = weights.data(),
                           .labels = labels.data(),
                           .blocks = c.blocks()});
  cuda::collect_rows({}, {.out = out.data(), .rows = rows.data(), .places = choices.data(), .M = c.M, .k = c.k, .slots = c.slots});
  return {labels.host(), {offsets.host(), order.host(), places.host(), weights.host()}, out.host()};
}

TEST_F(ExpertBlocksCuda, AreTheirDefinition) {
  for (const ExpertBlocksCase& c : expert_blocks_cases) {
    SCOPED_TRACE(::testing::Message() << c.N << " blocks of " << c.rows << " for " << c.E);
    const Sent sent(c);
    const auto rows = random_values<float>(c.all_rows(), 4), before = random_values<float>(c.M * c.slots, 5);
    const auto places = random_places(c);
    const Results got = on_device(c, sent, rows, before, places);
    EXPECT_EQ(got.labels, labels_by_definition(c, sent));
    EXPECT_EQ(got.arrived.exact().hex(), arrived_by_definition(c, got.labels).exact().hex());
    EXPECT_EQ(got.collected, collected_by_definition(c, rows, places, before));
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::expert_blocks_cuda_test
