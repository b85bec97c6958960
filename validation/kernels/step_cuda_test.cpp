// The small ops of a step on a GPU: the host's bits, since both run the same lines.
#include "device_array.hpp"
#include "kernels/step/step.hpp"

namespace tessera::kernels::testing::step_cuda_test {
namespace {

class StepCuda : public OnDevice {};

/// The bytes of what a step leaves after `losses`, which micro-batches weigh by `weights`.
struct Left {
  StepScalars scalars;
  AdamwScalars adamw;
  StepReport report;
};

/// Memory of either backend, by the functions that fill and read it.
template <class Put, class Get>
Left run(Backend backend, const std::vector<double>& losses, const std::vector<double>& weights, const StepInputs& in, double norm, Put put,
         Get get) {
  const Context context{.workspace = {}, .reproducible = false, .backend = backend};
  StepScalars zero{};
  EXPECT_TRUE(zero.squares.add(norm * norm));
  auto* scalars = put(zero);
  auto* inputs = put(in);
  auto* adamw = put(AdamwScalars{});
  auto* report = put(StepReport{});
  for (std::size_t i = 0; i < losses.size(); ++i)
    add_loss(context, {.scalars = scalars, .loss_sum = put(losses[i]), .weight = put(weights[i])});
  count_flags(context, scalars, inputs);
  finish_step(context, {.scalars = scalars, .inputs = inputs, .adamw = adamw, .report = report});
  return {get(scalars), get(adamw), get(report)};
}

/// Keeps what a run puts into memory.
struct Kept {
  std::vector<std::unique_ptr<DeviceBytes>> on_device;
  std::vector<std::shared_ptr<void>> on_host;
};

Left on_device(const std::vector<double>& losses, const std::vector<double>& weights, const StepInputs& in, double norm) {
  Kept kept;
  return run(
      Backend::cuda, losses, weights, in, norm,
      [&]<class T>(const T& value) {
        kept.on_device.push_back(std::make_unique<DeviceBytes>(sizeof(T)));
        kept.on_device.back()->upload(&value);
        return reinterpret_cast<T*>(kept.on_device.back()->data());
      },
      []<class T>(T* at) {
        T value{};
        TESSERA_CUDA_CHECK(cudaMemcpy(&value, at, sizeof(T), cudaMemcpyDeviceToHost));
        return value;
      });
}

Left on_host(const std::vector<double>& losses, const std::vector<double>& weights, const StepInputs& in, double norm) {
  Kept kept;
  return run(
      Backend::host, losses, weights, in, norm,
      [&]<class T>(const T& value) {
        auto copy = std::make_shared<T>(value);
        kept.on_host.push_back(copy);
        return copy.get();
      },
      []<class T>(T* at) { return *at; });
}

void expect_same(const Left& a, const Left& b) {
  EXPECT_EQ(std::memcmp(&a.scalars, &b.scalars, sizeof a.scalars), 0);
  EXPECT_EQ(a.report.loss, b.report.loss);
  EXPECT_EQ(a.report.grad_norm, b.report.grad_norm);
  EXPECT_EQ(a.report.not_finite, b.report.not_finite);
  EXPECT_EQ(a.report.overflow, b.report.overflow);
  EXPECT_EQ(a.report.stop, b.report.stop);
  EXPECT_EQ(a.adamw.learning_rate, b.adamw.learning_rate);
  EXPECT_EQ(a.adamw.bias_correction1, b.adamw.bias_correction1);
  EXPECT_EQ(a.adamw.bias_correction2, b.adamw.bias_correction2);
  EXPECT_EQ(a.adamw.grad_scale, b.adamw.grad_scale);
  EXPECT_EQ(a.adamw.skip, b.adamw.skip);
}

const StepInputs inputs{.targets = 1013, .learning_rate = 3e-4f, .bias_correction1 = 0.1f, .bias_correction2 = 0.05f, .clipping = 1};

TEST_F(StepCuda, HasTheHostsBits) {
  for (double norm : {0.3, 7.7}) {  // below the clipping and above
    const Left device = on_device({4021.7, 3999.1, 12.25}, {1, 1, 0.5}, inputs, norm),
               host = on_host({4021.7, 3999.1, 12.25}, {1, 1, 0.5}, inputs, norm);
    expect_same(device, host);
    EXPECT_NEAR(device.report.loss, (4021.7 + 3999.1 + 6.125) / 1013, 1e-9);
    EXPECT_NEAR(device.report.grad_norm, norm, 1e-9);
    EXPECT_NEAR(device.adamw.grad_scale, std::min(1.0, 1 / norm), 1e-6);
    EXPECT_EQ(device.report.not_finite, 0);
  }
}

TEST_F(StepCuda, AMicroBatchWithoutWeightIsNotRead) {
  const Left left = on_device({100, std::nan("")}, {1, 0}, inputs, 1);
  EXPECT_EQ(left.report.not_finite, 0);
  EXPECT_NEAR(left.report.loss, 100.0 / 1013, 1e-12);
}

TEST_F(StepCuda, WhatIsNotANumberSkipsTheUpdate) {
  for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const Left device = on_device({100, bad}, {1, 1}, inputs, 1);
    expect_same(device, on_host({100, bad}, {1, 1}, inputs, 1));
    EXPECT_EQ(device.report.not_finite, 1);
    EXPECT_EQ(device.adamw.skip, 1);
  }
}

TEST_F(StepCuda, SumsOfAnotherTierJoin) {
  StepScalars mine{}, other{};
  EXPECT_TRUE(mine.squares.add(2.5) && mine.loss.add(7) && other.squares.add(0x1p-60) && other.squares.add(1e9));
  other.overflow = 1;
  StepScalars expected = mine;
  host::join_sums({}, &expected, &other);
  EXPECT_EQ(expected.squares.value(), 2.5 + 1e9 + 0x1p-60);
  EXPECT_EQ(expected.loss.value(), 7);
  EXPECT_EQ(expected.overflow, 1);
  EXPECT_EQ(expected.not_finite, 0);
  DeviceBytes to(sizeof mine), from(sizeof other);
  to.upload(&mine), from.upload(&other);
  cuda::join_sums({}, reinterpret_cast<StepScalars*>(to.data()), reinterpret_cast<const StepScalars*>(from.data()));
  const std::vector<std::byte> joined = to.download();
  EXPECT_EQ(std::memcmp(joined.data(), &expected, sizeof expected), 0);
}

TEST_F(StepCuda, AStopIsCounted) {
  StepInputs in = inputs;
  in.stop = true;
  const Left left = on_device({100}, {1}, in, 1);
  EXPECT_EQ(left.scalars.stops, 1);
  EXPECT_EQ(left.report.stop, 1);
}

}  // namespace
}  // namespace tessera::kernels::testing::step_cuda_test
