#include "schedule/run_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/step/step.hpp"

namespace tessera {

namespace {

/// "fp8_amax.layers.0.mlp.w_down.input": of each matrix three.
void add_histories(std::vector<RunValue>& values, const Fp8Shape& fp8, int buffer) {
  using kernels::Fp8Tensor;
  const std::int64_t bytes = 4 * fp8.history;
  for (const std::string& matrix : fp8.matrices)
    for (const auto& [tensor, name] :
         {std::pair{Fp8Tensor::input, "input"}, {Fp8Tensor::weight, "weight"}, {Fp8Tensor::gradient, "gradient"}})
      values.push_back({.name = fmt::format("fp8_amax.{}.{}", matrix, name),
                        .type = DType::f32,
                        .use = {buffer, bytes * fp8.history_of(matrix, tensor), bytes, Access::read},
                        .count = fp8.history});
}

/// "guard_losses": what steps are judged by, as far as the deck has guards.
void add_guard(std::vector<RunValue>& values, const GuardKeys& keys, int buffer) {
  using kernels::Guard;
  constexpr std::size_t guard = offsetof(kernels::RunValues, guard);
  const auto add = [&](const char* name, DType type, std::size_t offset, std::int64_t count) {
    const auto bytes = static_cast<std::int64_t>(size_of(type)) * std::max<std::int64_t>(count, 1);
    values.push_back(
        {.name = name, .type = type, .use = {buffer, static_cast<std::int64_t>(guard + offset), bytes, Access::read}, .count = count});
  };
  const std::int64_t window = keys.steps_judged_by();
  if (keys.skip_limit > 0 || window > 0) add("guard_skipped_in_a_row", DType::i64, offsetof(Guard, in_a_row), 0);
  if (window == 0) return;
  add("guard_judged", DType::i64, offsetof(Guard, judged), 0);
  add("guard_losses", DType::f32, offsetof(Guard, losses), window);
  add("guard_norms", DType::f32, offsetof(Guard, norms), window);
}

}  // namespace

std::vector<RunValue> run_values(const Deck& deck, const Fp8Shape& fp8, const Schedule& schedule) {
  using kernels::LossScale, kernels::RunValues;
  const int buffer = schedule.find_buffer("run");
  std::vector<RunValue> values;
  const auto add = [&](const char* name, DType type, std::size_t offset, double initial) {
    const Use use{buffer, static_cast<std::int64_t>(offset), static_cast<std::int64_t>(size_of(type)), Access::read};
    values.push_back({name, type, initial, use});
  };
  add("applied_updates", DType::i64, offsetof(RunValues, applied_updates), 0);
  add("sample_cursor", DType::i64, offsetof(RunValues, sample_cursor), 0);
  add("samples_left_out", DType::i64, offsetof(RunValues, samples_left_out), 0);
  add_guard(values, deck.guards, buffer);
  if (fp8.delayed()) add_histories(values, fp8, schedule.find_buffer("fp8_history"));
  if (!deck.precision.scales_loss()) return values;
  const LossScaleKeys& keys = deck.precision.loss_scale;
  constexpr std::size_t scale = offsetof(RunValues, loss_scale);
  add("loss_scale", DType::f32, scale + offsetof(LossScale, value), keys.initial());
  add("loss_scale_good_steps", DType::i64, scale + offsetof(LossScale, good_steps), 0);
  add("loss_scale_overflows_left", DType::i64, scale + offsetof(LossScale, overflows_left), static_cast<double>(keys.hysteresis));
  return values;
}

}  // namespace tessera
