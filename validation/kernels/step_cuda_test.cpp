// The small ops of a step on a GPU: the host's bits, since both run the same lines.
#include "device_array.hpp"
#include "step_cases.hpp"

namespace tessera::kernels::testing::step_cuda_test {
namespace {

class StepCuda : public OnDevice {};

StepLeft step_on_device(const StepCase& c) {
  std::vector<std::unique_ptr<DeviceBytes>> kept;
  return run_step(
      Backend::cuda, c,
      [&]<class T>(const T& value) {
        kept.push_back(std::make_unique<DeviceBytes>(sizeof(T)));
        kept.back()->upload(&value);
        return reinterpret_cast<T*>(kept.back()->data());
      },
      []<class T>(T* at) {
        T value{};
        TESSERA_CUDA_CHECK(cudaMemcpy(&value, at, sizeof(T), cudaMemcpyDeviceToHost));
        return value;
      });
}

void expect_same(const StepLeft& a, const StepLeft& b) {
  EXPECT_EQ(std::memcmp(&a.scalars, &b.scalars, sizeof a.scalars), 0);
  EXPECT_EQ(a.report.loss, b.report.loss);
  EXPECT_EQ(a.report.grad_norm, b.report.grad_norm);
  EXPECT_EQ(a.report.not_finite, b.report.not_finite);
  EXPECT_EQ(a.report.overflow, b.report.overflow);
  EXPECT_EQ(a.report.stop, b.report.stop);
  EXPECT_EQ(a.update.learning_rate, b.update.learning_rate);
  EXPECT_EQ(a.update.bias_correction1, b.update.bias_correction1);
  EXPECT_EQ(a.update.bias_correction2, b.update.bias_correction2);
  EXPECT_EQ(a.update.grad_scale, b.update.grad_scale);
  EXPECT_EQ(a.update.skip, b.update.skip);
  EXPECT_EQ(std::memcmp(&a.second, &b.second, sizeof a.second), 0);
  EXPECT_EQ(a.report.skipped, b.report.skipped);
  EXPECT_EQ(a.run.loss_scale.value, b.run.loss_scale.value);
  EXPECT_EQ(a.gradient_scale.of_targets, b.gradient_scale.of_targets);
  EXPECT_EQ(a.gradient_scale.of_tokens, b.gradient_scale.of_tokens);
}

TEST_F(StepCuda, IsItsDefinitionAndHasTheHostsBits) {
  for (const StepCase& c : step_cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    const StepLeft left = step_on_device(c);
    expect_by_definition(c, left);
    expect_same(left, step_on_host(c));
  }
}

TEST_F(StepCuda, GuardsPassOverWhatTheHostPassesOver) {
  for (const StepCase& c : guarded_cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    const StepLeft left = step_on_device(c), host = step_on_host(c);
    expect_guarded(c, left);
    EXPECT_EQ(std::memcmp(&left.run.guard, &host.run.guard, sizeof host.run.guard), 0);
    EXPECT_EQ(left.report.loss_z, host.report.loss_z);
    EXPECT_EQ(left.report.norm_z, host.report.norm_z);
  }
}

TEST_F(StepCuda, SumsOfAnotherTierJoin) {
  JoinedSums sums;
  DeviceBytes to(sizeof sums.mine), from(sizeof sums.other);
  to.upload(&sums.mine), from.upload(&sums.other);
  cuda::join_sums({}, reinterpret_cast<StepScalars*>(to.data()), reinterpret_cast<const StepScalars*>(from.data()));
  host::join_sums({}, &sums.mine, &sums.other);
  JoinedSums::expect_joined(sums.mine);
  const std::vector<std::byte> joined = to.download();
  EXPECT_EQ(std::memcmp(joined.data(), &sums.mine, sizeof sums.mine), 0);
}

}  // namespace
}  // namespace tessera::kernels::testing::step_cuda_test
