#include "device_array.hpp"
#include "newton_schulz_cases.hpp"

namespace tessera::kernels::testing::newton_schulz_cuda_test {
namespace {

class NewtonSchulzCuda : public OnDevice {};

std::vector<bf16> on_host(const std::vector<bf16>& x, NewtonSchulz p) {
  std::vector<bf16> out = poisoned<bf16>(std::ssize(x));
  p.x = x.data(), p.out = out.data();
  Workspace workspace(host::newton_schulz_workspace_bytes(p));
  host::newton_schulz(workspace.context(true), p);
  return out;
}
std::vector<bf16> on_device(const std::vector<bf16>& x, NewtonSchulz p, std::int64_t shift = 0) {
  DeviceArray<bf16> there(x, shift), out(std::ssize(x), shift);
  p.x = there.data(), p.out = out.data();
  DeviceBytes workspace(cuda::newton_schulz_workspace_bytes(p));
  cuda::newton_schulz(workspace.context(), p);
  return out.host();
}

/// What is rounded to bf16 differs where sums of products do, and that grows with what is far below the largest singular value.
TEST_F(NewtonSchulzCuda, AgreesWithTheHost) {
  for (const MatrixCase& c : matrix_cases)
    for (const OrthogonalSteps steps : all_orthogonal_steps) {
      const auto x = random_values<bf16>(c.rows * c.columns, 1);
      const NewtonSchulz p{.rows = c.rows, .columns = c.columns, .steps = steps, .scale = 0.5f};
      const auto expected = on_host(x, p), result = on_device(x, p, c.rows % 2);
      double difference = 0, norm = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const auto e = static_cast<double>(static_cast<float>(expected[i]));
        difference += std::pow(static_cast<double>(static_cast<float>(result[i])) - e, 2), norm += e * e;
      }
      const bool far_from_singular = 3 * std::min(c.rows, c.columns) < std::max(c.rows, c.columns);
      EXPECT_LT(std::sqrt(difference / norm), far_from_singular ? 0.01 : 0.2) << c << ", steps " << static_cast<int>(steps);
    }
}

/// Of one element all products are exact in one order, so the norm's bits and those of the scaled matrix show.
TEST_F(NewtonSchulzCuda, HasTheBitsOfTheHostWhereThereIsOneProduct) {
  for (unsigned seed = 1; seed < 20; ++seed) {
    const auto x = random_values<bf16>(1, seed);
    const NewtonSchulz p{.rows = 1, .columns = 1, .steps = OrthogonalSteps::polar_express};
    EXPECT_EQ(digest(on_device(x, p)).hex(), digest(on_host(x, p)).hex()) << seed;
  }
}

TEST_F(NewtonSchulzCuda, TakesParts) {
  for (const MatrixCase& c : {MatrixCase{24, 300}, {36, 36}})
    for (const bool columns : {false, true}) {
      const PartedMatrix parted(random_values<bf16>(c.rows * c.columns, 6), c, 3, columns);
      NewtonSchulz p = parted.call();
      DeviceArray<bf16> there(parted.memory), out(c.rows * c.columns);
      p.x = there.data(), p.out = out.data();
      DeviceBytes workspace(cuda::newton_schulz_workspace_bytes(p));
      cuda::newton_schulz(workspace.context(), p);
      EXPECT_EQ(digest(parted.joined(out.host())), digest(on_device(parted.whole, {.rows = c.rows, .columns = c.columns}))) << c << columns;
    }
}

TEST_F(NewtonSchulzCuda, SameBitsTwice) {
  const auto x = random_values<bf16>(40 * 257, 3);
  expect_same_bits_on_device([&] { return digest(on_device(x, {.rows = 40, .columns = 257})); });
}

}  // namespace
}  // namespace tessera::kernels::testing::newton_schulz_cuda_test
