#include "base/backend.hpp"
#include "device_array.hpp"
#include "softmax_loss_rows_cases.hpp"

namespace tessera::kernels::testing::softmax_loss_rows_cuda_test {
namespace {

class SoftmaxLossRowsCuda : public OnDevice {};

using Case = SoftmaxLossRowsCase;

struct Result {
  std::vector<float> losses;
  std::vector<double> d_logits;
  Hash128 hash() const { return digest(losses, d_logits); }
};

enum class Mode { loss, gradient, in_place };

template <class T>
Result on_host(const Case& c, Mode mode) {
  SoftmaxLossRowsInputs in(c);
  auto losses = poisoned<float>(c.rows);
  auto d = poisoned<T>(c.rows * c.V);
  host::softmax_loss_rows({}, {.losses = losses.data(),
                               .logits = in.logits.data(),
                               .d_logits = mode == Mode::loss ? nullptr : d.data(),
                               .targets = in.targets.data(),
                               .weights = in.weights.data(),
                               .grad_scale = &softmax_grad_scale,
                               .rows = c.rows,
                               .V = c.V,
                               .dtype = dtype_of<T>(),
                               .map = c.map});
  return {losses, mode == Mode::loss ? std::vector<double>() : doubles(d)};
}

template <class T>
Result on_device(const Case& c, Mode mode, std::int64_t shift = 0) {
  SoftmaxLossRowsInputs in(c);
  DeviceArray<float> losses(c.rows), logits(in.logits, shift), weights(in.weights), scale(std::vector<float>{softmax_grad_scale});
  DeviceArray<std::int32_t> targets(in.targets);
  DeviceArray<T> d(c.rows * c.V, shift);
  void* to = mode == Mode::loss ? nullptr : mode == Mode::in_place ? static_cast<void*>(logits.data()) : d.data();
  cuda::softmax_loss_rows({}, {.losses = losses.data(),
                               .logits = logits.data(),
                               .d_logits = to,
                               .targets = targets.data(),
                               .weights = weights.data(),
                               .grad_scale = scale.data(),
                               .rows = c.rows,
                               .V = c.V,
                               .dtype = dtype_of<T>(),
                               .map = c.map});
  if (mode == Mode::loss) return {losses.host(), {}};
  return {losses.host(), mode == Mode::in_place ? doubles(logits.host()) : doubles(d.host())};
}

double largest(const std::vector<double>& v) {
  double most = 0;
  for (double x : v) most = std::max(most, std::abs(x));
  return most;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases(std::begin(softmax_loss_rows_cases), std::end(softmax_loss_rows_cases));
  cases.insert(cases.end(), std::begin(mapped_rows_cases), std::end(mapped_rows_cases));
  return cases;
}

template <class T>
void compare() {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    const Result expected = on_host<T>(c, Mode::gradient), result = on_device<T>(c, Mode::gradient);
    for (std::size_t r = 0; r < expected.losses.size(); ++r) {
      EXPECT_NEAR(result.losses[r], expected.losses[r], 1e-6 * std::max(1.0, std::abs(static_cast<double>(expected.losses[r]))));
    }
    ASSERT_EQ(result.d_logits.size(), expected.d_logits.size());
    if (c.V == 1) {  // probability - 1 is nothing but rounding
      EXPECT_LT(largest(result.d_logits), 1e-6 * static_cast<double>(softmax_grad_scale));
      continue;
    }
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < expected.d_logits.size(); ++i) {
      const double a = result.d_logits[i], b = expected.d_logits[i];
      difference += (a - b) * (a - b), norm += b * b;
      EXPECT_TRUE(a == 0 || std::abs(a) >= static_cast<double>(std::numeric_limits<float>::min())) << a;
    }
    EXPECT_LT(std::sqrt(difference / norm), sizeof(T) == 4 ? 1e-6 : 1e-3);
    EXPECT_EQ(result.losses, on_device<T>(c, Mode::loss).losses);
  }
}
TEST_F(SoftmaxLossRowsCuda, MatchesTheHostInFp32) { compare<float>(); }
TEST_F(SoftmaxLossRowsCuda, MatchesTheHostInBf16) { compare<bf16>(); }
TEST_F(SoftmaxLossRowsCuda, MatchesTheHostInFp16) { compare<f16>(); }

TEST_F(SoftmaxLossRowsCuda, SameBitsInPlaceAndWhereverOperandsLie) {
  for (const Case& c : {Case{3, 64}, Case{2, 20000}, Case{1, 45056}, Case{1, 45056, 20, {0.5f, 30}}}) {
    const Hash128 expected = on_device<float>(c, Mode::gradient).hash();
    EXPECT_EQ(on_device<float>(c, Mode::in_place).hash(), expected);
    EXPECT_EQ(on_device<float>(c, Mode::gradient, 1).hash(), expected);
    EXPECT_EQ(on_device<float>(c, Mode::in_place, 1).hash(), expected);
    expect_same_bits_on_device([&] { return on_device<bf16>(c, Mode::gradient).hash(); });
    expect_same_bits_on_device([&] { return on_device<float>(c, Mode::in_place).hash(); });
  }
}

// Equal logits of any size: no overflow, and the loss is log V.
TEST_F(SoftmaxLossRowsCuda, LargeLogitsDoNotOverflow) {
  for (float level : {-1e30f, -100.0f, 0.0f, 1e30f}) {
    DeviceArray<float> logits(std::vector<float>(1013, level)), losses(1), weights(std::vector<float>{1});
    DeviceArray<std::int32_t> targets(std::vector<std::int32_t>{5});
    cuda::softmax_loss_rows(
        {}, {.losses = losses.data(), .logits = logits.data(), .targets = targets.data(), .weights = weights.data(), .rows = 1, .V = 1013});
    EXPECT_NEAR(losses.host()[0], std::log(1013.0), 1e-5) << level;
  }
}

TEST_F(SoftmaxLossRowsCuda, WhatIsNotANumberShows) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> row(1013, 1.0f);
    row[700] = bad;
    DeviceArray<float> logits(row), losses(1), weights(std::vector<float>{1});
    DeviceArray<std::int32_t> targets(std::vector<std::int32_t>{5});
    cuda::softmax_loss_rows(
        {}, {.losses = losses.data(), .logits = logits.data(), .targets = targets.data(), .weights = weights.data(), .rows = 1, .V = 1013});
    EXPECT_FALSE(std::isfinite(losses.host()[0]));
  }
}

#ifdef TESSERA_EMULATED_GPU
// They keep less of a row beside them, and read the rest again.
TEST_F(SoftmaxLossRowsCuda, GpusWithLittleSharedMemoryHaveTheSameBits) {
  for (const Case& c : {Case{2, 20001}, Case{2, 24577}, Case{1, 45056}, Case{3, 50257}}) {
    const Hash128 expected = on_device<bf16>(c, Mode::gradient).hash();
    emulator::set_compute_capability(8, 0);
    EXPECT_EQ(on_device<bf16>(c, Mode::gradient).hash(), expected);
    emulator::set_compute_capability(8, 6);
  }
}
#endif

#ifdef TESSERA_EMULATED_GPU  // on a GPU a trap ends the process's work on it
TEST_F(SoftmaxLossRowsCuda, ATargetOutsideTheVocabularyTraps) {
  for (std::int32_t target : {-2, 64}) {
    DeviceArray<float> logits(random_values<float>(64, 1)), losses(1), weights(std::vector<float>{1});
    DeviceArray<std::int32_t> targets(std::vector<std::int32_t>{target});
    EXPECT_THROW(
        cuda::softmax_loss_rows(
            {},
            {.losses = losses.data(), .logits = logits.data(), .targets = targets.data(), .weights = weights.data(), .rows = 1, .V = 64}),
        std::logic_error);
  }
}
#endif

TEST_F(SoftmaxLossRowsCuda, MapsLogitsAsTheHostDoes) {
  for (const LogitMap& map : {LogitMap{}, {.scale = -3}, {.cap = 30}, {.scale = 0.5f, .cap = 5}})
    for (const std::int64_t n : {1, 7, 1013, 5000})
      for (const std::int64_t shift : {0, 1}) {
        std::vector<float> x = random_values<float>(n, 1, 20);
        DeviceArray<float> on_gpu(x, shift);
        cuda::map_logits({}, on_gpu.data(), n, map);
        host::map_logits({}, x.data(), n, map);
        const std::vector<float> result = on_gpu.host();
        for (std::size_t i = 0; i < x.size(); ++i)
          ASSERT_NEAR(result[i], x[i], 1e-6 * std::abs(static_cast<double>(x[i]))) << map.scale << ", " << map.cap;
      }
  expect_same_bits_on_device([] {
    DeviceArray<float> x(random_values<float>(5000, 1, 20));
    cuda::map_logits({}, x.data(), 5000, {.scale = 0.5f, .cap = 30});
    return digest(x.host());
  });
}

TEST_F(SoftmaxLossRowsCuda, SumsLossesInFp64) {
  for (const std::int64_t M : {1, 31, 1024, 5000}) {
    const std::vector<float> losses = random_values<float>(M, 4);
    double expected = 0;
    host::sum_losses({}, {.sum = &expected, .losses = losses.data(), .M = M});
    DeviceArray<float> on_gpu(losses);
    DeviceArray<double> sum(1);
    cuda::sum_losses({}, {.sum = sum.data(), .losses = on_gpu.data(), .M = M});
    EXPECT_NEAR(sum.host()[0], expected, 1e-12 * static_cast<double>(M)) << M;
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::softmax_loss_rows_cuda_test
