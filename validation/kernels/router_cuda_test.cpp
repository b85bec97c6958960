#include "device_array.hpp"
#include "router_cases.hpp"

namespace tessera::kernels::testing::router_cuda_test {
namespace {

class RouterCuda : public OnDevice {};

/// What all ops of the router leave, on the host or on a GPU.
template <class T>
Hash128 results(const RouterShape& s, bool on_host, bool biased = false, bool padded = false) {
  RouterInputs in(s);
  auto &logits = in.logits, &d_weights = in.d_weights, &bias = in.bias;
  auto& counts = in.counts;
  std::vector<double> weight{in.weight};
  const float scale = 0.5f;
  RouterBackward backward{.grad_scale = &scale, .balance = 0.4f, .z = 0.02f, .shape = s, .dtype = dtype_of<T>()};
  if (on_host) {
    auto experts = poisoned<std::int32_t>(s.M * s.k);
    auto weights = poisoned<float>(s.M * s.slots()), balance = poisoned<float>(s.M), z = poisoned<float>(s.M);
    auto d_logits = poisoned<T>(s.M * s.columns());
    host::router_forward({}, {.experts = experts.data(),
                              .weights = weights.data(),
                              .logits = logits.data(),
                              .bias = biased ? bias.data() : nullptr,
                              .padding = padded ? in.padding.data() : nullptr,
                              .shape = s});
    host::router_losses({}, {.balance = balance.data(),
                             .z = z.data(),
                             .logits = logits.data(),
                             .experts = experts.data(),
                             .counts = counts.data(),
                             .shape = s});
    backward.d_logits = d_logits.data(), backward.d_weights = d_weights.data(), backward.weights = weights.data();
    backward.experts = experts.data(), backward.logits = logits.data(), backward.counts = counts.data(), backward.weight = weight.data();
    host::router_backward({}, backward);
    return digest(experts, weights, balance, z, d_logits);
  }
  DeviceArray<std::int32_t> experts(s.M * s.k), device_counts(counts), device_padding(in.padding);
  DeviceArray<float> weights(s.M * s.slots()), balance(s.M), z(s.M), device_logits(logits), device_d_weights(d_weights), device_bias(bias);
  DeviceArray<double> device_weight(weight);
  DeviceArray<float> device_scale(std::vector<float>{scale});
  DeviceArray<T> d_logits(s.M * s.columns());
  cuda::router_forward({}, {.experts = experts.data(),
                            .weights = weights.data(),
                            .logits = device_logits.data(),
                            .bias = biased ? device_bias.data() : nullptr,
                            .padding = padded ? device_padding.data() : nullptr,
                            .shape = s});
  cuda::router_losses({}, {.balance = balance.data(),
                           .z = z.data(),
                           .logits = device_logits.data(),
                           .experts = experts.data(),
                           .counts = device_counts.data(),
                           .shape = s});
  backward.d_logits = d_logits.data(), backward.d_weights = device_d_weights.data(), backward.weights = weights.data();
  backward.experts = experts.data(), backward.logits = device_logits.data(), backward.counts = device_counts.data();
  backward.weight = device_weight.data(), backward.grad_scale = device_scale.data();
  cuda::router_backward({}, backward);
  return digest(experts.host(), weights.host(), balance.host(), z.host(), d_logits.host());
}

TEST_F(RouterCuda, HasTheBitsOfTheHost) {
  for (const RouterShape& s : router_cases) {
    EXPECT_EQ(results<float>(s, false).hex(), results<float>(s, true).hex()) << describe(s);
    EXPECT_EQ(results<bf16>(s, false).hex(), results<bf16>(s, true).hex()) << describe(s);
    EXPECT_EQ(results<f16>(s, false).hex(), results<f16>(s, true).hex()) << describe(s);
    EXPECT_EQ(results<float>(s, false, true).hex(), results<float>(s, true, true).hex()) << describe(s) << " with a bias";
    EXPECT_EQ(results<bf16>(s, false, false, true).hex(), results<bf16>(s, true, false, true).hex()) << describe(s) << " with padding";
  }
}

TEST_F(RouterCuda, SameBitsInEveryOrder) {
  expect_same_bits_on_device([] { return results<float>(router_cases[5], false); });
}

TEST_F(RouterCuda, BalancesAsTheHostDoes) {
  for (const BalanceRoutersCase& c : balance_routers_cases()) {
    DeviceArray<std::int64_t> device_loads(c.loads);
    for (const int skip : {0, 1}) {
      std::vector<float> expected = c.biases;
      std::vector<UpdateScalars> scalars{{.skip = skip}};
      BalanceRouters p{.biases = expected.data(),
                       .loads = c.loads.data(),
                       .scalars = scalars.data(),
                       .rate = balance_rate,
                       .layers = c.layers,
                       .E = c.E,
                       .stride = c.stride};
      host::balance_routers({}, p);
      DeviceArray<float> device_biases(c.biases);
      DeviceArray<UpdateScalars> device_scalars(scalars);
      p.biases = device_biases.data(), p.loads = device_loads.data(), p.scalars = device_scalars.data();
      cuda::balance_routers({}, p);
      EXPECT_EQ(device_biases.host(), expected) << c.E << " experts, skip " << skip;
      EXPECT_EQ(expected, skip == 1 ? c.biases : balanced_by_definition(c)) << c.E << " experts, skip " << skip;
    }
  }
}

TEST_F(RouterCuda, AddsTotals) {
  DeviceArray<std::int64_t> memory(std::vector<std::int64_t>(router_sums + 2, 0));
  DeviceArray<std::int32_t> counts(std::vector<std::int32_t>{3, 4}), offsets(std::vector<std::int32_t>{0, 3, 5}),
      bad(std::vector<std::int32_t>{0});
  DeviceArray<double> values(std::vector<double>{2.5, 0.5, 1});
  const AddRouterTotals p{.totals = reinterpret_cast<RouterTotals*>(memory.data()),
                          .loads = memory.data() + router_sums,
                          .balance = values.data(),
                          .z = values.data() + 1,
                          .weight = values.data() + 2,
                          .counts = counts.data(),
                          .offsets = offsets.data(),
                          .not_finite = bad.data(),
                          .E = 2};
  cuda::add_router_totals({}, p);
  cuda::add_router_totals({}, p);
  const auto sums = memory.host();
  RouterTotals totals;
  std::memcpy(static_cast<void*>(&totals), sums.data(), sizeof totals);
  EXPECT_EQ(totals.balance.value(), 5);
  EXPECT_EQ(totals.z.value(), 1);
  EXPECT_EQ(totals.dropped, 4);
  EXPECT_EQ(sums[router_sums], 6);
  EXPECT_EQ(sums[router_sums + 1], 8);
  EXPECT_EQ(bad.host().front(), 0);
}

}  // namespace
}  // namespace tessera::kernels::testing::router_cuda_test
