// Losses of tokens in groups, drawn by a seed.
#pragma once
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cross_entropy/cross_entropy.hpp"

namespace tessera::kernels::testing {

struct GroupLossesCase {
  std::int64_t groups = 0;
  std::vector<float> losses;
  std::vector<std::int32_t> targets, members;
};

/// Losses from 2^-20 to 2^5; some tokens have no target, and some no group.
inline GroupLossesCase random_group_losses(std::int64_t tokens, std::int64_t groups) {
  std::mt19937 random(17);
  GroupLossesCase c{.groups = groups, .losses = {}, .targets = {}, .members = {}};
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto mantissa = static_cast<float>(random() >> 8);
    c.losses.push_back(std::ldexp(mantissa, -20 - static_cast<int>(random() % 24)));
    c.targets.push_back(random() % 5 == 0 ? no_target : static_cast<std::int32_t>(random() % 100));
    c.members.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(groups + 1)) - 1);
  }
  return c;
}

}  // namespace tessera::kernels::testing
