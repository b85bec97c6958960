// Which of many cases a test takes: others at each commit, so that ten landings cover what one would, and all of them in full runs.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tessera::test {

/// Draws by TESSERA_TEST_DRAW, which scripts/test sets to a number made of the commit; a failure tells it, so that it can be repeated. With
/// TESSERA_TEST_FULL in the environment all cases are taken, or as many as can be waited for.
class Sample {
 public:
  Sample() : engine_(draw()) {}
  /// `count` of the numbers below `all`, ascending, in full runs up to `most` of them; always the first and the last.
  std::vector<std::size_t> of(std::size_t all, std::size_t count, std::size_t most = std::size_t{1} << 20) {
    std::vector<std::size_t> taken;
    if (full()) count = most;
    if (all <= count) {
      taken.resize(all);
      std::iota(taken.begin(), taken.end(), std::size_t{0});
      return taken;
    }
    taken = {0, all - 1};
    while (taken.size() < count) taken.push_back(engine_() % all);
    std::ranges::sort(taken);
    const auto rest = std::ranges::unique(taken);
    taken.erase(rest.begin(), rest.end());
    return taken;
  }
  /// `count` of the cases in their order, another time others; all in full runs.
  template <class Cases>
  auto some(const Cases& all, std::size_t count) {
    std::vector<std::size_t> order(std::size(all));
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (!full() && count < order.size()) {
      std::ranges::shuffle(order, engine_);
      order.resize(count);
      std::ranges::sort(order);
    }
    std::vector<std::remove_cvref_t<decltype(*std::begin(all))>> taken;
    for (const std::size_t i : order) taken.push_back(*(std::begin(all) + static_cast<std::ptrdiff_t>(i)));
    return taken;
  }
  /// Whether a case of this name is among one of `parts`.
  static bool takes(std::string_view name, std::size_t parts) {
    std::uint64_t hash = draw() + 14695981039346656037u;
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
    return full() || (hash >> 20) % parts == 0;
  }
  /// Whether the case of this number is among one of `parts`, of which every number is in one.
  static bool takes(std::size_t number, std::size_t parts) { return full() || (number + draw()) % parts == 0; }
  /// How many of what a test draws by `seed` it takes: `most` in full runs.
  static int cases(int count, int most) { return full() ? most : count; }
  static std::uint64_t seed() { return draw(); }
  static bool full() { return std::getenv("TESSERA_TEST_FULL") != nullptr; }
  static std::string describe() { return full() ? "TESSERA_TEST_FULL=1" : "TESSERA_TEST_DRAW=" + std::to_string(draw()); }

 private:
  static std::uint64_t draw() {
    const char* text = std::getenv("TESSERA_TEST_DRAW");
    return text ? std::strtoull(text, nullptr, 10) : 0;
  }
  std::mt19937_64 engine_;
};

}  // namespace tessera::test
