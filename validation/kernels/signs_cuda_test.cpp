#include "device_array.hpp"
#include "signs_cases.hpp"

namespace tessera::kernels::testing::signs_cuda_test {
namespace {

class SignsCuda : public OnDevice {};

/// A tensor packed, its parts added up by the first rank, and unpacked: on both, and bits are compared.
void compare(const SignCase& c, bool of_both, std::int64_t shift) {
  SCOPED_TRACE(::testing::Message() << c.n << " numbers for " << c.ranks << " ranks, of both " << of_both << ", shift " << shift);
  std::vector<float> x = signed_numbers(c.n, 1), error = signed_numbers(c.n, 2);
  SignBlocksOf blocks(c, c.ranks);
  DeviceArray<float> dx(x, shift), derror(error, shift);
  DeviceArray<std::uint32_t> words(blocks.words);
  DeviceArray<FixedSum> dsum(std::vector<FixedSum>(1));
  FixedSum sum;
  SumSignSquares squares{.sum = &sum, .x = of_both ? x.data() : nullptr, .error = error.data(), .n = c.n};
  PackSigns pack{.words = blocks.words.data(),
                 .scale = blocks.scale(blocks.words.data()),
                 .x = squares.x,
                 .error = error.data(),
                 .sum = &sum,
                 .n = c.n,
                 .parts = c.ranks,
                 .part = blocks.part,
                 .step = blocks.step};
  host::sum_sign_squares({}, squares);
  host::pack_signs({}, pack);
  squares.sum = dsum.data(), squares.x = of_both ? dx.data() : nullptr, squares.error = derror.data();
  cuda::sum_sign_squares({}, squares);
  pack.words = words.data(), pack.scale = blocks.scale(words.data()), pack.x = squares.x, pack.error = derror.data(),
  pack.sum = dsum.data();
  cuda::pack_signs({}, pack);
  EXPECT_EQ(digest(words.host()), digest(blocks.words));
  EXPECT_EQ(digest(derror.host()), digest(error));

  SumSigns mean{.error = error.data(),
                .words = blocks.words.data(),
                .scale = blocks.scale(blocks.words.data()),
                .n = std::min(c.n, blocks.part),
                .members = c.ranks,
                .step = blocks.step};
  UnpackSigns unpack{.x = x.data(), .words = mean.words, .scale = mean.scale, .n = c.n, .part = blocks.part, .step = blocks.step};
  host::sum_signs({}, mean);
  host::unpack_signs({}, unpack);
  mean.error = derror.data(), mean.words = words.data(), mean.scale = blocks.scale(words.data());
  cuda::sum_signs({}, mean);
  unpack.x = dx.data(), unpack.words = mean.words, unpack.scale = mean.scale;
  cuda::unpack_signs({}, unpack);
  EXPECT_EQ(digest(derror.host(), dx.host()), digest(error, x));
}

TEST_F(SignsCuda, HaveTheBitsOfTheHost) {
  for (const SignCase& c : sign_cases)
    for (const bool of_both : {true, false}) {
      if (watches_races() && c.n > 5001) continue;
      compare(c, of_both, 0);
      compare(c, of_both, 1);
    }
}

TEST_F(SignsCuda, OfNothingAreZeros) {
  DeviceArray<std::uint32_t> words(2);
  DeviceArray<FixedSum> sum(std::vector<FixedSum>(1));
  cuda::pack_signs(
      {}, {.words = words.data(), .scale = reinterpret_cast<float*>(words.data() + 1), .sum = sum.data(), .n = 0, .part = 32, .step = 2});
  EXPECT_EQ(words.host(), (std::vector<std::uint32_t>{0, 0}));
}

}  // namespace
}  // namespace tessera::kernels::testing::signs_cuda_test
