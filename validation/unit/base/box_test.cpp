// Boxes against walks over every element.
#include "base/box.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace tessera::box_test {
namespace {

using Element = std::vector<std::int64_t>;

/// The elements of a box, row-major.
std::vector<Element> walk(const Box& box) {
  std::vector<Element> elements;
  if (box.elements() == 0) return elements;
  Element at = box.start;
  for (;;) {
    elements.push_back(at);
    std::size_t d = at.size();
    while (d > 0 && ++at[d - 1] == box.start[d - 1] + box.count[d - 1]) --d, at[d] = box.start[d];
    if (d == 0) return elements;
  }
}

class Random {
 public:
  std::int64_t operator()(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  Shape shape() {
    Shape s;
    for (std::int64_t d = (*this)(0, 4); d > 0; --d) s.dims.push_back((*this)(1, 6));
    return s;
  }
  /// Never empty; often whole along a dim.
  Box box(const Box& inside) {
    Box box = inside;
    for (std::size_t d = 0; d < box.start.size(); ++d) {
      if ((*this)(0, 2) == 0) continue;
      box.start[d] = (*this)(inside.start[d], inside.start[d] + inside.count[d] - 1);
      box.count[d] = (*this)(1, inside.start[d] + inside.count[d] - box.start[d]);
    }
    return box;
  }

 private:
  std::mt19937_64 engine_{9};
};

TEST(Box, Words) {
  EXPECT_EQ((Box{{0, 32}, {64, 16}}).str(), "[0, 64) x [32, 48)");
  EXPECT_EQ(Box().str(), "scalar");
  EXPECT_EQ(Box().elements(), 1);
  EXPECT_EQ(whole_box({3, 5}), (Box{{0, 0}, {3, 5}}));
  EXPECT_TRUE(lies_in({{1, 0}, {2, 5}}, {3, 5}));
  EXPECT_FALSE(lies_in({{1, 0}, {3, 5}}, {3, 5}));
  EXPECT_FALSE(lies_in({{-1, 0}, {1, 5}}, {3, 5}));
  EXPECT_FALSE(lies_in({{0, 0}, {1, -1}}, {3, 5}));
  EXPECT_FALSE(lies_in({{0}, {1}}, {3, 5}));
  EXPECT_FALSE(lies_in({{0, 0}, {1}}, {3, 5}));
  EXPECT_FALSE(lies_in({{std::int64_t{1} << 62}, {std::int64_t{3} << 61}}, {7})) << "their sum is no number";
}

TEST(Box, OverlapsAreTheElementsOfBoth) {
  Random random;
  for (int trial = 0; trial < 500; ++trial) {
    const Box whole = whole_box(random.shape()), a = random.box(whole), b = random.box(whole);
    std::vector<Element> both;
    for (const Element& e : walk(a)) {
      const auto in_b = walk(b);
      if (std::find(in_b.begin(), in_b.end(), e) != in_b.end()) both.push_back(e);
    }
    const auto common = overlap(a, b);
    EXPECT_EQ(common ? walk(*common) : std::vector<Element>{}, both);
  }
}

TEST(Box, FlatRanges) {
  for (auto& dims : std::vector<std::vector<std::int64_t>>{{}, {7}, {4, 5}, {3, 4, 5}, {2, 1, 3, 4}, {1, 9}, {9, 1}}) {
    const auto all = walk(whole_box(Shape(dims)));
    const auto n = static_cast<std::int64_t>(all.size());
    for (std::int64_t a = 0; a <= n; ++a)
      for (std::int64_t b = a; b <= n; ++b) {
        std::vector<Element> visited;
        const auto boxes = flat_range_boxes(dims, a, b);
        EXPECT_LE(boxes.size(), std::max<std::size_t>(2 * dims.size(), 1));
        for (const Box& box : boxes)
          for (const Element& e : walk(box)) visited.push_back(e);
        ASSERT_EQ(visited, std::vector<Element>(all.begin() + a, all.begin() + b));
      }
  }
}

TEST(Box, RunsVisitEveryElementOnceInOrder) {
  Random random;
  for (int trial = 0; trial < 1000; ++trial) {
    const Box whole = whole_box(random.shape()), from = random.box(whole), to = random.box(whole);
    const auto part = overlap(from, to);
    if (!part) continue;
    std::map<Element, std::int64_t> in_from, in_to;
    for (const Element& e : walk(from)) in_from.emplace(e, static_cast<std::int64_t>(in_from.size()));
    for (const Element& e : walk(to)) in_to.emplace(e, static_cast<std::int64_t>(in_to.size()));
    // walk() is row-major and the map is ordered alike, so numbers are offsets.
    std::vector<std::pair<std::int64_t, std::int64_t>> expected, got;
    for (const Element& e : walk(*part)) expected.emplace_back(in_from.at(e), in_to.at(e));
    int runs = 0;
    for_each_run(*part, from, to, [&](const BoxRun& run) {
      ++runs;
      for (std::int64_t i = 0; i < run.elements; ++i) got.emplace_back(run.from + i, run.to + i);
    });
    EXPECT_EQ(got, expected);
    if (from == to && part == from) {
      EXPECT_EQ(runs, 1);
    }
  }
  for_each_run({{2, 0}, {0, 4}}, {{0, 0}, {4, 4}}, {{0, 0}, {4, 4}}, [](const BoxRun&) { ADD_FAILURE() << "a box of nothing has no run"; });
}

TEST(Box, ElementsHaveTheirPlaceInTheWhole) {
  Random random;
  for (int i = 0; i < 300; ++i) {
    const Shape shape = random.shape();
    const Box box = random.box(whole_box(shape));
    const std::vector<Element> all = walk(whole_box(shape)), mine = walk(box);
    for (std::size_t at = 0; at < mine.size(); ++at)
      ASSERT_EQ(all[static_cast<std::size_t>(element_around(box, static_cast<std::int64_t>(at), shape))], mine[at]) << box.str();
  }
}

TEST(Box, ColumnsOfAMatrixAreARunARow) {
  std::vector<BoxRun> runs;
  for_each_run({{0, 2}, {3, 4}}, {{0, 2}, {3, 4}}, {{0, 0}, {3, 10}}, [&](const BoxRun& run) { runs.push_back(run); });
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[1].from, 4);
  EXPECT_EQ(runs[1].to, 12);
  EXPECT_EQ(runs[1].elements, 4);
}

}  // namespace
}  // namespace tessera::box_test
