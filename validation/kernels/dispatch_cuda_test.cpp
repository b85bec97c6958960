#include "device_array.hpp"
#include "dispatch_cases.hpp"

namespace tessera::kernels::testing::dispatch_cuda_test {
namespace {

class DispatchCuda : public OnDevice {};

using Case = DispatchCase;

/// The plan and what rows become by it, of operands on the host or on a GPU. Only weigh_rows sums in another order there.
template <class T>
struct Results {
  std::vector<std::int32_t> counts, offsets, places, sources;
  std::vector<T> rows, combined, d, a;
  std::vector<float> d_weights;

  Hash128 exact() const { return digest(counts, offsets, places, sources, rows, combined, d, a); }

  Results(const Case& c, bool on_host, std::int64_t shift = 0) {
    const std::int64_t R = c.rows(), slots = c.k + 1;
    const auto experts = c.k % 2 == 0 ? padded_choices(c).experts : random_choices(c);
    const auto x = random_values<T>(c.M * c.C, 1), shared = random_values<T>(c.M * c.C, 2);
    const auto d_in = random_values<T>(R * c.C, 3), a_in = random_values<T>(R * c.C, 4);
    const auto weights = random_values<float>(c.M * slots, 5);
    const std::vector<float> none(static_cast<std::size_t>(c.M * slots), 0.0f);
    const auto run = [&](Backend backend, auto& counts, auto& offsets, auto& places, auto& sources, auto& rows, auto& combined, auto& d,
                         auto& a, auto& d_weights, auto& experts, auto& x, auto& shared, auto& weights, Context context) {
      context.backend = backend;
      plan_dispatch(context, {.counts = counts.data(),
                              .offsets = offsets.data(),
                              .places = places.data(),
                              .sources = sources.data(),
                              .experts = experts.data(),
                              .M = c.M,
                              .k = c.k,
                              .E = c.E,
                              .capacity_factor = c.factor(),
                              .rows = R,
                              .blocks = c.blocks});
      gather_rows(context,
                  {.out = rows.data(), .in = x.data(), .sources = sources.data(), .k = c.k, .rows = R, .C = c.C, .dtype = dtype_of<T>()});
      combine_rows(context, {.out = combined.data(),
                             .rows = rows.data(),
                             .places = places.data(),
                             .weights = weights.data(),
                             .shared = shared.data(),
                             .weighs_shared = c.C % 2 == 0,
                             .addend = x.data(),
                             .M = c.M,
                             .k = c.k,
                             .C = c.C,
                             .dtype = dtype_of<T>()});
      weigh_rows(context, {.d_weights = d_weights.data(),
                           .d = d.data(),
                           .a = a.data(),
                           .weights = weights.data(),
                           .sources = sources.data(),
                           .k = c.k,
                           .slots = slots,
                           .rows = R,
                           .F = c.C,
                           .dtype = dtype_of<T>()});
    };
    if (on_host) {
      counts = poisoned<std::int32_t>(c.E), offsets = poisoned<std::int32_t>(c.E + 1), places = poisoned<std::int32_t>(c.M * c.k);
      sources = poisoned<std::int32_t>(R), rows = poisoned<T>(R * c.C), combined = poisoned<T>(c.M * c.C), d = d_in, a = a_in,
      d_weights = none;
      run(Backend::host, counts, offsets, places, sources, rows, combined, d, a, d_weights, experts, x, shared, weights, {});
      return;
    }
    DeviceArray<std::int32_t> device_counts(c.E), device_offsets(c.E + 1), device_places(c.M * c.k), device_sources(R),
        device_experts(experts);
    DeviceArray<T> device_rows(R * c.C, shift), device_combined(c.M * c.C, shift), device_d(d_in, shift), device_a(a_in, shift),
        device_x(x, shift), device_shared(shared, shift);
    DeviceArray<float> device_d_weights(none), device_weights(weights);
    DeviceBytes workspace(cuda::plan_dispatch_workspace_bytes({.M = c.M, .k = c.k, .E = c.E}));
    run(Backend::cuda, device_counts, device_offsets, device_places, device_sources, device_rows, device_combined, device_d, device_a,
        device_d_weights, device_experts, device_x, device_shared, device_weights, workspace.context());
    counts = device_counts.host(), offsets = device_offsets.host(), places = device_places.host(), sources = device_sources.host();
    rows = device_rows.host(), combined = device_combined.host(), d = device_d.host(), a = device_a.host(),
    d_weights = device_d_weights.host();
  }
};

template <class T>
void check_against_the_host() {
  for (const Case& c : DeviceSample().some(dispatch_cases, 6))
    for (const std::int64_t shift : {0, 1}) {
      if (watches_races() && shift != c.M % 2) continue;
      SCOPED_TRACE(::testing::Message() << c << ", shift " << shift);
      const Results<T> ours(c, false, shift), host(c, true);
      EXPECT_EQ(ours.exact().hex(), host.exact().hex());
      EXPECT_LT(norm_error(ours.d_weights, host.d_weights), 1e-5);
    }
}
TEST_F(DispatchCuda, HasTheBitsOfTheHostFp32) { check_against_the_host<float>(); }
TEST_F(DispatchCuda, HasTheBitsOfTheHostBf16) { check_against_the_host<bf16>(); }
TEST_F(DispatchCuda, HasTheBitsOfTheHostFp16) { check_against_the_host<f16>(); }

TEST_F(DispatchCuda, SameBitsInEveryOrder) {
  expect_same_bits_on_device([] {
    const Results<bf16> r(dispatch_cases[2], false);
    return digest(r.places, r.rows, r.combined, r.d, r.d_weights);
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::dispatch_cuda_test
