// Rows of values whose largest is known.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/argmax/argmax.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct ArgmaxCase {
  std::string name;
  std::vector<float> x;
  std::int32_t index;  ///< of the first of the largest; -1: there is none
};

/// Lengths about vectors, warps, blocks of threads and rounds of them; a largest at either end and in the middle.
inline std::vector<ArgmaxCase> random_argmax_cases() {
  std::vector<ArgmaxCase> cases;
  for (std::int64_t n : {1, 2, 31, 33, 1000, 1023, 1025, 8191, 8193, 50257}) {
    const auto x = random_values<float>(n, 4);
    cases.push_back({std::to_string(n) + " values", x, static_cast<std::int32_t>(std::max_element(x.begin(), x.end()) - x.begin())});
    for (std::int64_t at : {std::int64_t{0}, n / 2, n - 1}) {
      cases.push_back({std::to_string(n) + " values, 100 at " + std::to_string(at), x, static_cast<std::int32_t>(at)});
      cases.back().x[static_cast<std::size_t>(at)] = 100;
    }
  }
  return cases;
}

/// Equal ones of a thread, of a warp, of two warps, and of two rounds.
inline std::vector<ArgmaxCase> equal_argmax_cases() {
  std::vector<ArgmaxCase> cases = {{"three of five", {1, 3, 2, 3, 3}, 1},
                                   {"zeros", {0.0f, -0.0f}, 0},
                                   {"zeros, the negative one first", {-0.0f, 0.0f}, 0},
                                   {"infinity", {1, INFINITY, 2}, 1}};
  const auto more = [&](std::size_t n, std::initializer_list<std::size_t> places) {
    std::vector<float> x(n, -3.0f);
    cases.push_back({std::to_string(n) + " equal ones", x, 0});
    for (std::size_t at : places) {
      x[at] = 7;
      cases.push_back({std::to_string(n) + " values, the largest from " + std::to_string(at) + " on", x, static_cast<std::int32_t>(at)});
    }
  };
  more(300, {299, 290, 200, 65, 64, 17, 0});
  more(20000, {19999, 9000, 8500, 5000, 4001, 4000, 900, 3});
  return cases;
}

/// NaN before and after the largest of its thread and of its warp, and nothing but NaN or minus infinity.
inline std::vector<ArgmaxCase> no_argmax_cases() {
  const float nan = std::nanf("");
  std::vector<ArgmaxCase> cases;
  for (std::size_t n : {1u, 15u, 64u, 300u, 3000u}) {
    for (float value : {nan, -nan, -INFINITY})
      cases.push_back({std::to_string(n) + " times " + std::to_string(value), std::vector<float>(n, value), -1});
    for (std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
      cases.push_back({"NaN at " + std::to_string(at) + " of " + std::to_string(n), std::vector<float>(n, INFINITY), -1});
      cases.back().x[at] = nan;
    }
  }
  for (float other : {-3.0f, INFINITY})
    for (std::size_t at : {0u, 31u, 1024u, 9000u, 19999u}) {
      std::vector<float> x(20000, -4.0f);
      x[1025] = x[40] = other;
      x[at] = nan;
      cases.push_back({"NaN at " + std::to_string(at) + " beside " + std::to_string(other), x, -1});
    }
  return cases;
}

}  // namespace tessera::kernels::testing
