// Routers: shapes, logits, and the loads that their biases follow.
#pragma once
#include <ostream>

#include "kernels/router/router.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

/// One expert; more rows than a block of threads has; more experts than a warp has lanes; all experts chosen; counts in parts.
inline const RouterShape router_cases[] = {{.M = 1, .E = 1, .k = 1},
                                           {.M = 33, .E = 8, .k = 2},
                                           {.M = 130, .E = 8, .k = 2},
                                           {.M = 21, .E = 7, .k = 3, .normalized = false},
                                           {.M = 11, .E = 60, .k = 4, .shared = true, .normalized = false},
                                           {.M = 65, .E = 60, .k = 4, .shared = true, .normalized = false},
                                           {.M = 9, .E = 5, .k = 5, .shared = true},
                                           {.M = 12, .E = 6, .k = 2, .parts = 4},
                                           {.M = 20, .E = 6, .k = 2, .parts = 4},
                                           {.M = 21, .E = 7, .k = 3, .scale = 2.5f},
                                           {.M = 21, .E = 7, .k = 3, .normalized = false, .scale = 16},
                                           {.M = 33, .E = 8, .k = 2, .sigmoid = true},
                                           {.M = 21, .E = 60, .k = 4, .shared = true, .sigmoid = true, .scale = 2.5f},
                                           {.M = 20, .E = 6, .k = 3, .normalized = false, .sigmoid = true, .scale = 0.5f, .parts = 4},
                                           {.M = 40, .E = 24, .k = 5, .sigmoid = true, .scale = 1.5f, .groups = 6, .top_groups = 2},
                                           {.M = 70, .E = 128, .k = 3, .sigmoid = true, .groups = 64, .top_groups = 3}};
inline std::string describe(const RouterShape& s) {
  return std::to_string(s.M) + " tokens, " + std::to_string(s.k) + " of " + std::to_string(s.E) + " experts in " + std::to_string(s.parts) +
         " parts" + (s.sigmoid ? " by sigmoid, " + std::to_string(s.groups) + " groups" : "");
}

struct RouterInputs {
  std::vector<float> logits, d_weights, bias;
  std::vector<std::int32_t> counts;   ///< of the parts before this one and of this one
  std::vector<std::int32_t> padding;  ///< 1 of some tokens
  double weight = 1;
  explicit RouterInputs(const RouterShape& s)
      : logits(random_values<float>(s.M * s.columns(), 1, 2)),
        d_weights(random_values<float>(s.M * s.slots(), 2)),
        bias(random_values<float>(s.E, 9, 0.3f)),
        counts(static_cast<std::size_t>(s.parts * s.E)),
        padding(static_cast<std::size_t>(s.M)) {
    for (std::size_t m = 0; m < padding.size(); ++m) padding[m] = m % 7 == 2 || m + 1 + padding.size() / 5 > padding.size() ? 1 : 0;
    for (std::int64_t m = 0; m + 1 < s.M; m += 5)  // equal ones
      logits[static_cast<std::size_t>(m * s.columns())] = logits[static_cast<std::size_t>(m * s.columns() + s.E - 1)];
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = static_cast<std::int32_t>(5 * i % 7 + 1);
  }
};

/// Biases of layers, of which the last of a row are none, and loads that they follow.
struct BalanceRoutersCase {
  std::int64_t layers, E, stride;
  std::vector<std::int64_t> loads;
  std::vector<float> biases;
};
inline std::vector<BalanceRoutersCase> balance_routers_cases() {
  // The mean of the second layer is no integer; the third has nothing to do.
  std::vector<BalanceRoutersCase> cases = {{3, 3, 4, {4, 9, 2, 1, 1, 2, 5, 5, 5}, {0, 1, -1, 7, 0.5f, -0.5f, 0.125f, 0.375f, 7, 1, 2, 3}},
                                           {3, 100, 128, std::vector<std::int64_t>(300), {}}};
  for (std::size_t i = 0; i < 300; ++i) cases[1].loads[i] = static_cast<std::int64_t>(31 * i % 17);
  for (std::size_t i = 0; i < 3 * 128; ++i) cases[1].biases.push_back(static_cast<float>(static_cast<int>(i * 37 % 64) - 32) / 256);
  return cases;
}
inline constexpr float balance_rate = 0.25f;  // a power of two: sums of it are exact

/// Biases after a step.
inline std::vector<float> balanced_by_definition(const BalanceRoutersCase& c) {
  std::vector<float> biases = c.biases;
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    const auto begin = c.loads.begin() + layer * c.E;
    std::int64_t all = 0;
    for (std::int64_t e = 0; e < c.E; ++e) all += begin[e];
    for (std::int64_t e = 0; e < c.E; ++e) {
      const std::int64_t lacks = all - c.E * begin[e];  // times E
      biases[static_cast<std::size_t>(layer * c.stride + e)] += lacks > 0 ? balance_rate : lacks < 0 ? -balance_rate : 0;
    }
  }
  return biases;
}

}  // namespace tessera::kernels::testing
