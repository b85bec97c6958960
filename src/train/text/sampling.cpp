#include "train/text/sampling.hpp"

#include <vector>

#include "base/check.hpp"
#include "kernels/argmax/argmax.hpp"
#include "kernels/draw/draw.hpp"
#include "kernels/elementwise/elementwise.hpp"

namespace tessera {
namespace {

/// Of the k largest alone.
std::int32_t draw_of_largest(std::span<const float> logits, std::int64_t k, double temperature, double uniform) {
  const std::vector<std::int32_t> ids = kernels::largest(logits, k);
  std::vector<float> of_ids;
  of_ids.reserve(ids.size());
  for (const std::int32_t id : ids) of_ids.push_back(logits[static_cast<std::size_t>(id)]);
  const std::int32_t at = kernels::draw(of_ids, temperature, uniform);
  return at < 0 ? at : ids[static_cast<std::size_t>(at)];
}

}  // namespace

void fail_of_logits(std::int64_t position) {
  fail(ExitCode::numerics,
       "the logits of token {} of the text (the first is 0) are not finite numbers: the checkpoint is damaged, or its training diverged. "
       "`tessera inspect CHECKPOINT --verify` compares its files with their checksums, `tessera evaluate CHECKPOINT` shows its loss",
       position);
}

std::int32_t sample_token(std::span<const float> logits, double temperature, std::int64_t top_k, std::uint64_t seed,
                          std::int64_t position) {
  const auto V = static_cast<std::int64_t>(logits.size());
  std::int32_t token = -1;
  if (temperature > 0) {
    const double uniform =
        static_cast<double>(kernels::counter_random(seed, 0x67656e, static_cast<std::uint64_t>(position)) >> 11) * 0x1p-53;
    token = top_k > 0 && top_k < V ? draw_of_largest(logits, top_k, temperature, uniform) : kernels::draw(logits, temperature, uniform);
  } else {
    kernels::argmax({}, {.index = &token, .x = logits.data(), .n = V});
  }
  if (token < 0) fail_of_logits(position);
  return token;
}

}  // namespace tessera
