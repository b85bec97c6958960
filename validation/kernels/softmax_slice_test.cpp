// The loss over slices of the vocabulary against that of whole rows.
#include "softmax_slice_cases.hpp"

namespace tessera::kernels::testing::softmax_slice_test {
namespace {

template <class T>
SoftmaxSliceResult by_slices(const SoftmaxSliceCase& c, const SoftmaxSliceInputs& in, bool in_place = false, bool with_losses = true) {
  auto sums = poisoned<double>(c.slices * c.rows * 3);
  for (std::int64_t k = 0; k < c.slices; ++k) {
    const Range range = in.slice(c, k);
    softmax_slice_sums({}, {.sums = sums.data() + k * c.rows * 3,
                            .logits = in.columns(c, range).data(),
                            .targets = in.targets.data(),
                            .rows = c.rows,
                            .V = range.size(),
                            .first = range.begin,
                            .map = c.map});
  }
  SoftmaxSliceResult result{{}, std::vector<double>(static_cast<std::size_t>(c.rows * c.V))};
  for (std::int64_t k = 0; k < c.slices; ++k) {
    const Range range = in.slice(c, k);
    std::vector<float> logits = in.columns(c, range);
    auto losses = poisoned<float>(c.rows);
    auto d = poisoned<T>(c.rows * range.size());
    softmax_slice_loss({}, {.losses = with_losses ? losses.data() : nullptr,
                            .logits = logits.data(),
                            .d_logits = in_place ? static_cast<void*>(logits.data()) : d.data(),
                            .sums = sums.data(),
                            .targets = in.targets.data(),
                            .weights = in.weights.data(),
                            .grad_scale = &softmax_slice_grad_scale,
                            .rows = c.rows,
                            .V = range.size(),
                            .first = range.begin,
                            .slices = c.slices,
                            .dtype = dtype_of<T>(),
                            .map = c.map});
    if (k > 0 && with_losses) {
      EXPECT_EQ(losses, result.losses) << "all ranks get the same losses";
    }
    if (with_losses) result.losses = losses;
    for (std::int64_t r = 0; r < c.rows; ++r)
      for (std::int64_t v = 0; v < range.size(); ++v) {
        const auto at = static_cast<std::size_t>(r * range.size() + v);
        result.d_logits[static_cast<std::size_t>(r * c.V + range.begin + v)] =
            static_cast<double>(in_place ? logits[at] : static_cast<float>(d[at]));
      }
  }
  return result;
}

template <class T>
SoftmaxSliceResult by_slices(const SoftmaxSliceCase& c, bool in_place = false) {
  return by_slices<T>(c, SoftmaxSliceInputs(c), in_place);
}

template <class T>
void compare() {
  for (const SoftmaxSliceCase& c : softmax_slice_cases) {
    SCOPED_TRACE(::testing::Message() << c.rows << " rows of " << c.V << " in " << c.slices << " slices, scale " << c.map.scale << ", cap "
                                      << c.map.cap);
    expect_close<T>(by_slices<T>(c), of_whole_rows<T>(c));
  }
}
TEST(SoftmaxSlice, MatchesWholeRowsInFp32) { compare<float>(); }
TEST(SoftmaxSlice, MatchesWholeRowsInBf16) { compare<bf16>(); }
TEST(SoftmaxSlice, MatchesWholeRowsInFp16) { compare<f16>(); }

// The second pass of a head that learns preferences.
TEST(SoftmaxSlice, GradientsHaveWeightsOfEitherSign) {
  for (const SoftmaxSliceCase& c : softmax_slice_cases) {
    SCOPED_TRACE(::testing::Message() << c.rows << " rows of " << c.V << " in " << c.slices << " slices, scale " << c.map.scale << ", cap "
                                      << c.map.cap);
    SoftmaxSliceInputs in = signed_inputs(c);
    const SoftmaxSliceResult result = by_slices<float>(c, in, false, false);
    expect_close<float>(result, {{}, gradient_in_fp64(c, in)});
    EXPECT_EQ(by_slices<float>(c, in, true, false).hash(), result.hash()) << "in place";
    for (float& weight : in.weights) weight = -weight;
    SoftmaxSliceResult turned = by_slices<float>(c, in, false, false);
    for (double& d : turned.d_logits) d = 0 - d;
    EXPECT_EQ(turned.d_logits, result.d_logits) << "the sign alone differs";
  }
}

TEST(SoftmaxSlice, SameBitsInPlaceAndOnAnyThreads) {
  for (const SoftmaxSliceCase& c : softmax_slice_cases) {
    EXPECT_EQ(by_slices<float>(c, true).hash(), by_slices<float>(c).hash());
    expect_same_bits([&] { return by_slices<bf16>(c).hash(); });
  }
}

// Here, where there are no threads yet: whole rows of mapped logits too.
TEST(SoftmaxSlice, WholeRowsOfMappedLogitsHaveTheSameBitsForAnyThreadCount) {
  expect_same_bits([] {
    const SoftmaxSliceCase c{7, 1013, 1, 20, {0.5f, 30}};
    SoftmaxSliceInputs in(c);
    auto losses = poisoned<float>(c.rows);
    softmax_loss_rows({}, {.losses = losses.data(),
                           .logits = in.logits.data(),
                           .d_logits = in.logits.data(),
                           .targets = in.targets.data(),
                           .weights = in.weights.data(),
                           .grad_scale = &softmax_slice_grad_scale,
                           .rows = c.rows,
                           .V = c.V,
                           .map = c.map});
    return digest(losses, in.logits);
  });
}

TEST(MapLogits, SameBitsForAnyThreadCount) {
  expect_same_bits([] {
    std::vector<float> x = random_values<float>(70001, 1, 20);
    map_logits({}, x.data(), 70001, {.scale = 0.5f, .cap = 30});
    return digest(x);
  });
}

TEST(SoftmaxSlice, WhatIsNotANumberShowsInEverySlice) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> left(8, 1.0f), right(8, 1.0f);
    right[3] = bad;
    const std::int32_t target = 2;
    double sums[6];
    softmax_slice_sums({}, {.sums = sums, .logits = left.data(), .targets = &target, .rows = 1, .V = 8, .first = 0});
    softmax_slice_sums({}, {.sums = sums + 3, .logits = right.data(), .targets = &target, .rows = 1, .V = 8, .first = 8});
    float loss = 0;
    const float weight = 1;
    softmax_slice_loss(
        {}, {.losses = &loss, .logits = left.data(), .sums = sums, .targets = &target, .weights = &weight, .rows = 1, .V = 8, .slices = 2});
    EXPECT_FALSE(std::isfinite(loss)) << bad;
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::softmax_slice_test
