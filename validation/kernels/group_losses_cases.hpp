// Losses of tokens in groups, drawn by a seed.
#pragma once
#include <cmath>
#include <ostream>
#include <random>
#include <vector>

namespace tessera::kernels::testing {

struct GroupLossesCase {
  std::int64_t tokens, groups;
};
/// About a block of threads of a GPU; one group and more than a warp has lanes.
inline const GroupLossesCase group_losses_cases[] = {{1, 1},    {1, 3},   {1, 40},  {127, 1},  {127, 3}, {127, 40}, {128, 1},  {128, 3},
                                                     {128, 40}, {129, 1}, {129, 3}, {129, 40}, {999, 4}, {5000, 1}, {5000, 3}, {5000, 40}};
inline std::ostream& operator<<(std::ostream& out, const GroupLossesCase& c) {
  return out << c.tokens << " tokens in " << c.groups << " groups";
}

struct GroupLossesInputs {
  std::int64_t groups = 0;
  std::vector<float> losses, weights;
  std::vector<std::int32_t> members;
};

/// Losses from 2^-20 to 2^5; some tokens have no weight, some a fraction, and some no group.
inline GroupLossesInputs random_group_losses(const GroupLossesCase& of) {
  std::mt19937 random(17);
  GroupLossesInputs c{.groups = of.groups, .losses = {}, .weights = {}, .members = {}};
  for (std::int64_t t = 0; t < of.tokens; ++t) {
    const auto mantissa = static_cast<float>(random() >> 8);
    c.losses.push_back(std::ldexp(mantissa, -20 - static_cast<int>(random() % 24)));
    c.weights.push_back(std::ldexp(static_cast<float>(random() % 5), -static_cast<int>(random() % 20)));
    c.members.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(of.groups + 1)) - 1);
  }
  return c;
}

}  // namespace tessera::kernels::testing
