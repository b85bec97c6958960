// Whether a step moves anything: values that are not finite, and losses and norms far above those of the steps before, are passed over.
#pragma once
#include <cstdint>

#include "base/types.hpp"

namespace tessera::kernels {

inline constexpr int most_guard_window = 128;

/// What a deck says of it.
struct GuardRules {
  std::int32_t skip_limit = 0;  ///< steps in a row that may be passed over
  std::int32_t window = 0;      ///< steps that spikes are measured by; 0: none is looked for
  bool skips_spikes = false;
  float z = 6;  ///< robust standard deviations above the median
};

/// Part of a run's values.
struct Guard {
  std::int64_t in_a_row = 0;                                            ///< steps that were passed over, up to the last one
  std::int64_t judged = 0;                                              ///< steps whose figures joined the windows
  float losses[most_guard_window] = {}, norms[most_guard_window] = {};  ///< of the latest of these, in turn; 0: none yet
};

/// The number at place `place` of `n` numbers in their order.
TESSERA_BOTH inline float in_order(const float* values, int n, int place) {
  for (int i = 0; i < n; ++i) {
    int before = 0;
    for (int k = 0; k < n; ++k) before += values[k] < values[i] || (values[k] == values[i] && k < i);
    if (before == place) return values[i];
  }
  return 0;
}

/// Of an even number of values the lower one of the middle two, so that it is one of them.
TESSERA_BOTH inline float median(const float* values, int n) { return in_order(values, n, (n - 1) / 2); }

/// How many robust standard deviations `value` lies above the median of a window: 1.4826 times the median distance to it, and a thousandth
/// of it at least (numbers that hardly move make no spike of a last digit). 0 before half of the window is there.
TESSERA_BOTH inline float robust_z(const float* ring, int window, float value) {
  float seen[most_guard_window];
  int n = 0;
  for (int i = 0; i < window; ++i)
    if (ring[i] != 0) seen[n++] = ring[i];
  if (2 * n < window) return 0;
  const float middle = median(seen, n), least = 1e-3f * (middle < 0 ? -middle : middle);
  for (int i = 0; i < n; ++i) seen[i] = seen[i] < middle ? middle - seen[i] : seen[i] - middle;
  const float spread = 1.4826f * median(seen, n), scale = spread > least ? spread : least;
  return scale > 0 ? (value - middle) / scale : 0;
}

/// A step's figures join the windows.
TESSERA_BOTH inline void join(Guard& guard, const GuardRules& rules, float loss, float norm) {
  if (rules.window == 0) return;
  const auto at = guard.judged++ % rules.window;
  guard.losses[at] = loss, guard.norms[at] = norm;
}

}  // namespace tessera::kernels
