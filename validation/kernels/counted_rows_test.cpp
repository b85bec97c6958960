// Counted rows move to the front and back, in place.
#include "kernels/counted_rows/counted_rows.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kernels/parallel.hpp"

namespace tessera::kernels {
namespace {

struct Counted {
  std::int32_t n = -1;
  std::vector<std::int32_t> rows, targets;
  std::vector<float> weights;
};

Counted count(const std::vector<float>& weights) {
  const auto M = weights.size();
  std::vector<std::int32_t> targets(M);
  std::iota(targets.begin(), targets.end(), 100);
  Counted c{.rows = std::vector<std::int32_t>(M, -7), .targets = std::vector<std::int32_t>(M, -7), .weights = std::vector<float>(M, -7)};
  host::count_rows({.count = &c.n,
                    .rows = c.rows.data(),
                    .counted_targets = c.targets.data(),
                    .counted_weights = c.weights.data(),
                    .targets = targets.data(),
                    .weights = weights.data(),
                    .M = static_cast<std::int64_t>(M)});
  return c;
}

const std::vector<std::vector<float>> cases = {{1}, {0}, {1, 1, 1}, {0, 0, 0, 0}, {0, 1, 0.5f, 0, 0, 2, 0}, {1, 0, 0, 0}, {0, 0, 0, 1}};

TEST(CountedRows, ListsRowsWithAWeight) {
  const Counted c = count({0, 1, 0.5f, 0, 0, -2, 0});
  EXPECT_EQ(c.n, 3);
  EXPECT_EQ(std::vector<std::int32_t>(c.rows.begin(), c.rows.begin() + 3), (std::vector<std::int32_t>{1, 2, 5}));
  EXPECT_EQ(c.targets, (std::vector<std::int32_t>{101, 102, 105, 0, 0, 0, 0}));
  EXPECT_EQ(c.weights, (std::vector<float>{1, 0.5f, -2, 0, 0, 0, 0}));
}

TEST(CountedRows, MoveToTheFrontAndBack) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const std::int64_t N : {1, 3, 700})
      for (const std::vector<float>& weights : cases) {
        const Counted c = count(weights);
        const auto M = static_cast<std::int64_t>(weights.size()), width = N * static_cast<std::int64_t>(size_of(type));
        std::vector<std::uint8_t> before(static_cast<std::size_t>(M * width));
        for (std::size_t i = 0; i < before.size(); ++i) before[i] = static_cast<std::uint8_t>(i * 31 % 251 + 1);
        std::vector<std::uint8_t> x = before, front(before.size(), 0), back(before.size(), 0);
        for (std::int64_t k = 0; k < c.n; ++k) {
          const std::int64_t row = c.rows[static_cast<std::size_t>(k)];
          std::copy_n(before.begin() + row * width, width, front.begin() + k * width);
          std::copy_n(before.begin() + row * width, width, back.begin() + row * width);
        }
        const host::MoveRows move{.x = x.data(), .rows = c.rows.data(), .n = c.n, .M = M, .N = N, .dtype = type};
        host::gather_counted_rows(move);
        EXPECT_EQ(x, front);
        for (std::int64_t i = c.n * width; i < M * width; ++i) x[static_cast<std::size_t>(i)] = 77;  // whatever lies behind them
        host::spread_counted_rows(move);
        EXPECT_EQ(x, back);
      }
}

}  // namespace
}  // namespace tessera::kernels
