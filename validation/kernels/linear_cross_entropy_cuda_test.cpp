// The whole head on a GPU (chunks of logits, loss, both gradients) against the host's on the same inputs.
#include "device_array.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "workspace.hpp"

namespace tessera::kernels::testing {
namespace {

class LinearCrossEntropyCuda : public OnDevice {};

struct Case {
  std::int64_t M, C, V, chunk;
  float logit_scale = 1;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << c.M << " tokens, C " << c.C << ", V " << c.V << ", chunks of " << c.chunk;
  }
};
// One token; chunks that divide the tokens and others; rows that are no whole vectors; peaked logits; more vocabulary than shared memory
// keeps.
const Case cases[] = {{1, 8, 2, 4},       {1, 48, 1013, 1},     {77, 48, 1013, 32}, {33, 65, 257, 100},
                      {64, 64, 1024, 16}, {20, 64, 1013, 7, 8}, {5, 16, 50257, 2}};

template <class T>
struct Inputs {
  std::vector<T> x, weight;
  std::vector<float> d_weight;  ///< of micro-batches before: added to
  std::vector<std::int32_t> targets;
  explicit Inputs(const Case& c)
      : x(random_values<T>(c.M * c.C, 1, c.logit_scale)),
        weight(random_values<T>(c.V * c.C, 2)),
        d_weight(random_values<float>(c.V * c.C, 3, 1e-3f)) {
    for (std::int64_t i = 0; i < c.M; ++i) targets.push_back(i % 5 == 4 ? no_target : static_cast<std::int32_t>((i * 7919 + 3) % c.V));
  }
};

template <class T>
struct Result {
  std::vector<float> losses;
  double loss_sum = 0;
  std::vector<T> d_x;
  std::vector<float> d_weight;
  Hash128 hash() const { return digest(losses, std::vector<double>{loss_sum}, d_x, d_weight); }
};

template <class T>
LinearCrossEntropy shape(const Case& c) {
  return {.grad_scale = 1.f / 64, .M = c.M, .C = c.C, .V = c.V, .chunk = c.chunk, .dtype = dtype_of<T>()};
}

template <class T>
Result<T> on_host(const Case& c, bool reproducible) {
  Inputs<T> in(c);
  Result<T> r{poisoned<float>(c.M), 0, poisoned<T>(c.M * c.C), in.d_weight};
  LinearCrossEntropy l = shape<T>(c);
  l.losses = r.losses.data(), l.loss_sum = &r.loss_sum, l.d_x = r.d_x.data(), l.d_weight = r.d_weight.data();
  l.x = in.x.data(), l.weight = in.weight.data(), l.targets = in.targets.data();
  Workspace workspace(host::linear_cross_entropy_workspace_bytes(l));
  host::linear_cross_entropy(workspace.context(reproducible), l);
  return r;
}

template <class T>
Result<T> on_device(const Case& c, bool reproducible, bool gradients = true) {
  const Inputs<T> in(c);
  DeviceArray<float> losses(c.M), d_weight(in.d_weight);
  DeviceArray<double> loss_sum(1);
  DeviceArray<T> d_x(c.M * c.C), x(in.x), weight(in.weight);
  DeviceArray<std::int32_t> targets(in.targets);
  LinearCrossEntropy l = shape<T>(c);
  l.losses = losses.data(), l.loss_sum = loss_sum.data();
  if (gradients) l.d_x = d_x.data(), l.d_weight = d_weight.data();
  l.x = x.data(), l.weight = weight.data(), l.targets = targets.data();
  DeviceBytes workspace(cuda::linear_cross_entropy_workspace_bytes(l));
  Context context = workspace.context();
  context.reproducible = reproducible;
  cuda::linear_cross_entropy(context, l);
  return {losses.host(), loss_sum.host()[0], d_x.host(), d_weight.host()};
}

template <class T>
void compare() {
  for (const Case& c : cases)
    for (bool reproducible : {false, true}) {
      SCOPED_TRACE(::testing::Message() << c << (reproducible ? ", reproducible" : ""));
      const Result<T> expected = on_host<T>(c, reproducible), result = on_device<T>(c, reproducible);
      EXPECT_LT(norm_error(result.losses, expected.losses), 1e-5);
      EXPECT_NEAR(result.loss_sum, expected.loss_sum, 1e-5 * std::abs(expected.loss_sum));
      EXPECT_LT(norm_error(result.d_x, expected.d_x), device_tolerance<T>());
      EXPECT_LT(norm_error(result.d_weight, expected.d_weight), device_tolerance<T>());
    }
}
TEST_F(LinearCrossEntropyCuda, MatchesTheHostInFp32) { compare<float>(); }
TEST_F(LinearCrossEntropyCuda, MatchesTheHostInBf16) { compare<bf16>(); }

TEST_F(LinearCrossEntropyCuda, LossAloneIsTheSameLossAndLeavesGradients) {
  const Case c{77, 48, 1013, 20};
  const Result<bf16> with = on_device<bf16>(c, true), without = on_device<bf16>(c, true, false);
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_EQ(with.loss_sum, without.loss_sum);
  EXPECT_EQ(without.d_weight, Inputs<bf16>(c).d_weight);
}

TEST_F(LinearCrossEntropyCuda, SameBitsTwice) {
  expect_same_bits_on_device([] { return on_device<bf16>({77, 48, 1013, 32}, true).hash(); });
  expect_same_bits_on_device([] { return on_device<float>({33, 65, 257, 100}, true).hash(); });
}

}  // namespace
}  // namespace tessera::kernels::testing
