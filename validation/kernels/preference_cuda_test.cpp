// Losses of preferences on a GPU: the host's bits, since both run the same lines.
#include "device_array.hpp"
#include "preference_cases.hpp"

namespace tessera::kernels::testing::preference_cuda_test {
namespace {

class PreferenceCuda : public OnDevice {};

/// A value in device memory.
template <class T>
class DeviceValue {
 public:
  explicit DeviceValue(const T& value) : bytes_(sizeof(T)) { bytes_.upload(&value); }
  T* data() { return reinterpret_cast<T*>(bytes_.data()); }
  T host() const {
    T value;
    std::memcpy(static_cast<void*>(&value), bytes_.download().data(), sizeof(T));
    return value;
  }

 private:
  DeviceBytes bytes_;
};

/// Sums of groups in device memory, which holds plain numbers.
class DeviceSums {
 public:
  explicit DeviceSums(const std::vector<GroupTotals>& sums) : bytes_(sums.size() * sizeof(GroupTotals)) { bytes_.upload(sums.data()); }
  const GroupTotals* data() { return reinterpret_cast<const GroupTotals*>(bytes_.data()); }

 private:
  DeviceBytes bytes_;
};

PreferenceResult on_device(const PreferenceInputs& in) {
  DeviceSums sums(in.sums);
  DeviceArray<std::int32_t> counts(in.counts);
  DeviceArray<double> reference(in.reference);
  DeviceArray<float> margins(in.margins), coefficients(in.groups());
  DeviceArray<std::uint8_t> labels(in.labels);
  DeviceValue<KlEstimate> kl(in.kl);
  DeviceValue<PreferenceScale> scale(in.scale);
  DeviceValue<FixedSum> loss(FixedSum{});
  DeviceValue<PreferenceTotals> totals(PreferenceTotals{});
  DeviceValue<std::int32_t> not_finite(0);
  PreferenceCoefficients p = in.arguments();
  p.coefficients = coefficients.data(), p.loss = loss.data(), p.totals = totals.data(), p.not_finite = not_finite.data();
  p.sums = sums.data(), p.counts = counts.data(), p.labels = labels.data(), p.kl = kl.data(), p.scale = scale.data();
  if (p.reference) p.reference = reference.data();
  if (p.margins) p.margins = margins.data();
  cuda::preference_coefficients({}, p);
  return {coefficients.host(), loss.host(), totals.host(), not_finite.host()};
}

TEST_F(PreferenceCuda, HasTheHostsBits) {
  for (const PreferenceCase& c : preference_cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    for (const std::int64_t S : {2, 12, 132}) {
      const PreferenceInputs in = preference_inputs(c, S);
      const PreferenceResult device = on_device(in), host = preference_on_host(in);
      EXPECT_EQ(device.coefficients, host.coefficients);
      EXPECT_EQ(device.sums_hash().hex(), host.sums_hash().hex());
      EXPECT_EQ(device.not_finite, 0);
    }
  }
}

TEST_F(PreferenceCuda, DoesNotDependOnTheOrderOfThreads) {
  for (const PreferenceCase& c : preference_cases()) expect_same_bits_on_device([&] { return on_device(preference_inputs(c)).hash(); });
}

TEST_F(PreferenceCuda, TellsLossesThatAreNoNumber) {
  PreferenceInputs in = preference_inputs(preference_cases()[0]);
  in.sums[8].targets -= 1;
  EXPECT_EQ(on_device(in).not_finite, 1);
}

TEST_F(PreferenceCuda, AddsNothingWhereAnotherRankCounts) {
  const PreferenceInputs in = preference_inputs(preference_cases()[0]);
  DeviceSums sums(in.sums);
  DeviceArray<std::int32_t> counts(in.counts);
  DeviceArray<double> reference(in.reference);
  DeviceArray<float> coefficients(in.groups());
  DeviceValue<PreferenceScale> scale(in.scale);
  DeviceValue<std::int32_t> not_finite(0);
  PreferenceCoefficients p = in.arguments();
  p.coefficients = coefficients.data(), p.not_finite = not_finite.data(), p.sums = sums.data(), p.counts = counts.data();
  p.reference = reference.data(), p.scale = scale.data();
  cuda::preference_coefficients({}, p);
  EXPECT_EQ(coefficients.host(), preference_on_host(in).coefficients);
}

TEST_F(PreferenceCuda, RowsHaveTheHostsWeights) {
  std::vector<float> coefficients = random_values<float>(7, 1), expected = poisoned<float>(1000);
  std::vector<std::int32_t> groups;
  for (std::int32_t row = 0; row < 1000; ++row) groups.push_back(row * 7919 % 9 - 1);
  const auto arguments = [&](float* weights, const float* of, const std::int32_t* members) {
    return PreferenceRowWeights{.weights = weights, .coefficients = of, .groups = members, .M = 1000, .number = 7};
  };
  host::preference_row_weights({}, arguments(expected.data(), coefficients.data(), groups.data()));
  DeviceArray<float> weights(1000), of(coefficients);
  DeviceArray<std::int32_t> members(groups);
  cuda::preference_row_weights({}, arguments(weights.data(), of.data(), members.data()));
  EXPECT_EQ(weights.host(), expected);
}

TEST_F(PreferenceCuda, SumsOfTextsHaveTheHostsBits) {
  const PreferenceInputs in = preference_inputs(preference_cases()[0], 132);
  DeviceSums sums(in.sums);
  DeviceArray<std::int32_t> counts(in.counts);
  DeviceArray<double> reference(in.reference), found(in.S);
  DeviceValue<std::int32_t> not_finite(0);
  DeviceValue<KlEstimate> kl(KlEstimate{});
  cuda::sequence_log_probabilities(
      {}, {.log_probabilities = found.data(), .not_finite = not_finite.data(), .sums = sums.data(), .counts = counts.data(), .S = in.S});
  cuda::add_kl({}, {.kl = kl.data(),
                    .not_finite = not_finite.data(),
                    .sums = sums.data(),
                    .counts = counts.data(),
                    .reference = reference.data(),
                    .S = in.S});
  auto expected = poisoned<double>(in.S);
  std::int32_t none = 0;
  KlEstimate expected_kl;
  host::sequence_log_probabilities(
      {}, {.log_probabilities = expected.data(), .not_finite = &none, .sums = in.sums.data(), .counts = in.counts.data(), .S = in.S});
  host::add_kl({}, {.kl = &expected_kl,
                    .not_finite = &none,
                    .sums = in.sums.data(),
                    .counts = in.counts.data(),
                    .reference = in.reference.data(),
                    .S = in.S});
  EXPECT_EQ(found.host(), expected);
  const KlEstimate on_gpu = kl.host();
  EXPECT_EQ(std::memcmp(&on_gpu, &expected_kl, sizeof on_gpu), 0);
  EXPECT_EQ(not_finite.host(), 0);
}

}  // namespace
}  // namespace tessera::kernels::testing::preference_cuda_test
