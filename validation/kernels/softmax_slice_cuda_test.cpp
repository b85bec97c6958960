#include "device_array.hpp"
#include "softmax_slice_cases.hpp"

namespace tessera::kernels::testing::softmax_slice_cuda_test {
namespace {

class SoftmaxSliceCuda : public OnDevice {};

template <class T>
SoftmaxSliceResult on_device(const SoftmaxSliceCase& c, const SoftmaxSliceInputs& in, std::int64_t shift = 0, bool in_place = false,
                             bool with_losses = true) {
  DeviceArray<std::int32_t> targets(in.targets);
  DeviceArray<float> weights(in.weights);
  std::vector<double> sums;
  for (std::int64_t k = 0; k < c.slices; ++k) {
    const Range range = in.slice(c, k);
    DeviceArray<float> logits(in.columns(c, range), shift);
    DeviceArray<double> mine(c.rows * 3);
    cuda::softmax_slice_sums({}, {.sums = mine.data(),
                                  .logits = logits.data(),
                                  .targets = targets.data(),
                                  .rows = c.rows,
                                  .V = range.size(),
                                  .first = range.begin,
                                  .map = c.map});
    const std::vector<double> found = mine.host();
    sums.insert(sums.end(), found.begin(), found.end());
  }
  SoftmaxSliceResult result{{}, std::vector<double>(static_cast<std::size_t>(c.rows * c.V))};
  DeviceArray<double> all(sums);
  DeviceArray<float> scale(std::vector<float>{softmax_slice_grad_scale});
  for (std::int64_t k = 0; k < c.slices; ++k) {
    const Range range = in.slice(c, k);
    DeviceArray<float> logits(in.columns(c, range), shift), losses(c.rows);
    DeviceArray<T> d(c.rows * range.size(), shift);
    cuda::softmax_slice_loss({}, {.losses = with_losses ? losses.data() : nullptr,
                                  .logits = logits.data(),
                                  .d_logits = in_place ? static_cast<void*>(logits.data()) : d.data(),
                                  .sums = all.data(),
                                  .targets = targets.data(),
                                  .weights = weights.data(),
                                  .grad_scale = scale.data(),
                                  .rows = c.rows,
                                  .V = range.size(),
                                  .first = range.begin,
                                  .slices = c.slices,
                                  .dtype = dtype_of<T>(),
                                  .map = c.map});
    if (k > 0 && with_losses) {
      EXPECT_EQ(losses.host(), result.losses) << "all ranks get the same losses";
    }
    if (with_losses) result.losses = losses.host();
    const std::vector<double> found = in_place ? doubles(logits.host()) : doubles(d.host());
    for (std::int64_t r = 0; r < c.rows; ++r)
      for (std::int64_t v = 0; v < range.size(); ++v)
        result.d_logits[static_cast<std::size_t>(r * c.V + range.begin + v)] = found[static_cast<std::size_t>(r * range.size() + v)];
  }
  return result;
}

template <class T>
SoftmaxSliceResult on_device(const SoftmaxSliceCase& c, std::int64_t shift = 0, bool in_place = false) {
  return on_device<T>(c, SoftmaxSliceInputs(c), shift, in_place);
}

template <class T>
void compare() {
  for (const SoftmaxSliceCase& c : softmax_slice_cases) {
    SCOPED_TRACE(::testing::Message() << c.rows << " rows of " << c.V << " in " << c.slices << " slices, scale " << c.map.scale << ", cap "
                                      << c.map.cap);
    expect_close<T>(on_device<T>(c), of_whole_rows<T>(c));
  }
}
TEST_F(SoftmaxSliceCuda, MatchesWholeRowsInFp32) { compare<float>(); }
TEST_F(SoftmaxSliceCuda, MatchesWholeRowsInBf16) { compare<bf16>(); }
TEST_F(SoftmaxSliceCuda, MatchesWholeRowsInFp16) { compare<f16>(); }

TEST_F(SoftmaxSliceCuda, GradientsHaveWeightsOfEitherSign) {
  for (const SoftmaxSliceCase& c : softmax_slice_cases) {
    SCOPED_TRACE(::testing::Message() << c.rows << " rows of " << c.V << " in " << c.slices << " slices, scale " << c.map.scale << ", cap "
                                      << c.map.cap);
    SoftmaxSliceInputs in = signed_inputs(c);
    const SoftmaxSliceResult result = on_device<float>(c, in, 0, false, false);
    expect_close<float>(result, {{}, gradient_in_fp64(c, in)});
    EXPECT_EQ(on_device<float>(c, in, 0, true, false).hash(), result.hash()) << "in place";
  }
}

TEST_F(SoftmaxSliceCuda, SameBitsInPlaceAndWhereverOperandsLie) {
  for (const SoftmaxSliceCase& c : {softmax_slice_cases[3], softmax_slice_cases[4]}) {
    const Hash128 expected = on_device<float>(c).hash();
    EXPECT_EQ(on_device<float>(c, 0, true).hash(), expected);
    EXPECT_EQ(on_device<float>(c, 1).hash(), expected);
    expect_same_bits_on_device([&] { return on_device<bf16>(c).hash(); });
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::softmax_slice_cuda_test
