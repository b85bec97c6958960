#include "schedule/run_values.hpp"

#include <cmath>
#include <cstddef>

#include "kernels/step/step.hpp"

namespace tessera {

std::vector<RunValue> run_values(const Deck& deck, int buffer) {
  using kernels::LossScale, kernels::RunValues;
  std::vector<RunValue> values;
  const auto add = [&](const char* name, DType type, std::size_t offset, double initial) {
    const Use use{buffer, static_cast<std::int64_t>(offset), static_cast<std::int64_t>(size_of(type)), Access::read};
    values.push_back({name, type, initial, use});
  };
  add("applied_updates", DType::i64, offsetof(RunValues, applied_updates), 0);
  add("sample_cursor", DType::i64, offsetof(RunValues, sample_cursor), 0);
  if (!deck.precision.scales_loss()) return values;
  const LossScaleKeys& keys = deck.precision.loss_scale;
  constexpr std::size_t scale = offsetof(RunValues, loss_scale);
  add("loss_scale", DType::f32, scale + offsetof(LossScale, value), keys.initial());
  add("loss_scale_good_steps", DType::i64, scale + offsetof(LossScale, good_steps), 0);
  add("loss_scale_overflows_left", DType::i64, scale + offsetof(LossScale, overflows_left), static_cast<double>(keys.hysteresis));
  return values;
}

}  // namespace tessera
