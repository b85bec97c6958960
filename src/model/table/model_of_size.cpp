#include "model/table/model_of_size.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.hpp"
#include "base/types.hpp"
#include "model/table/parameters.hpp"

namespace tessera {
namespace {

std::int64_t count(ModelKeys model, std::int64_t layers) {
  model.layers = layers;
  return parameter_count(parameter_table(model));
}

/// What large and small models have in common among themselves.
struct Habits {
  std::int64_t head_dim, heads, ff_multiple;  ///< heads: their number is a multiple of it
  double width_of_layer;
};
Habits habits_of(std::int64_t parameters) {
  if (parameters >= 1'000'000'000) return {.head_dim = 128, .heads = 4, .ff_multiple = 256, .width_of_layer = 128};
  return {.head_dim = 64, .heads = 1, .ff_multiple = 64, .width_of_layer = 64};
}

}  // namespace

ModelKeys model_of_size(std::int64_t parameters, ModelKeys like) {
  const std::int64_t sharing = std::max<std::int64_t>(1, like.heads / std::max<std::int64_t>(1, like.kv_heads));
  const Habits habits = habits_of(parameters);
  const std::int64_t step = std::lcm(habits.heads, sharing);
  ModelKeys best;
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t heads = step;; heads += step) {
    ModelKeys m = like;
    m.heads = heads, m.kv_heads = heads / sharing, m.head_dim = habits.head_dim, m.width = heads * habits.head_dim;
    m.ff_width = round_up(8 * m.width / 3, habits.ff_multiple);
    const std::int64_t one = count(m, 1), each = count(m, 2) - one;
    const double layers = 1 + static_cast<double>(parameters - one) / static_cast<double>(each);
    m.layers = layers >= 16 ? 2 * std::lround(layers / 2) : std::max(1L, std::lround(layers));
    const double distance = std::abs(std::log(static_cast<double>(m.width) / (habits.width_of_layer * static_cast<double>(m.layers))));
    if (layers < 0.5) break;
    if (distance < least) best = m, least = distance;
  }
  if (best.layers == 0)
    fail(ExitCode::usage,
         "{} parameters are fewer than a layer and an embedding of {} tokens (model.vocab) need: give more, or a smaller vocabulary",
         parameters, like.vocab);
  const std::int64_t lacking = parameters - count(best, best.layers), fine = 64;
  const std::int64_t steps = std::lround(static_cast<double>(lacking) / static_cast<double>(3 * best.width * best.layers * fine));
  best.ff_width = std::max(fine, best.ff_width + fine * steps);
  return best;
}

}  // namespace tessera
