#include "report/bench.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "train/engine/device.hpp"

namespace tessera {
namespace {

constexpr std::size_t alignment = 4096;
constexpr double round_seconds = 3e-3;  ///< at least, of what is timed at once
constexpr int most_rounds = 5;
constexpr double most_seconds = 0.4;  ///< of one measurement, where a call is long

}  // namespace

Bench::Bench(const World& world, kernels::Backend backend, std::size_t bytes)
    : world_(world), backend_(backend), arena_(backend == kernels::Backend::cuda ? Tier::device : Tier::host, bytes, "tessera.report") {
  refill();
}

void Bench::refill() {
  // 0x3c00 is 0.0078 in bf16, and so are all of these in fp32 and bf16: no kernel meets what is slow or no number. One pattern repeats.
  std::vector<std::uint32_t> pattern(1 << 18);
  for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = 0x3c003c00u + static_cast<std::uint32_t>(i % 61) * 0x10001u;
  kernels::Context c;
  c.backend = backend_;
  const std::size_t size = pattern.size() * sizeof(std::uint32_t);
  for (std::size_t at = 0; at < arena_.bytes(); at += size)
    kernels::copy(c, arena_.data() + at, pattern.data(), std::min(size, arena_.bytes() - at));
  wait_for_device(backend_);
}

void* Bench::take(std::size_t bytes) {
  const std::size_t size = static_cast<std::size_t>(round_up(static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(alignment)));
  TESSERA_REQUIRE(taken_ + size <= arena_.bytes(), "a measurement takes {} bytes, but {} are left", bytes, left());
  void* at = arena_.data() + taken_;
  taken_ += size;
  return at;
}

kernels::Context Bench::context(std::size_t workspace) {
  kernels::Context c;
  c.workspace = {static_cast<std::byte*>(take(std::max<std::size_t>(workspace, 64))), workspace};
  c.backend = backend_;
  return c;
}

double Bench::seconds(const std::function<void()>& call) const {
  const auto timed = [&](int calls) {
    const double begin = now_seconds();
    for (int i = 0; i < calls; ++i) call();
    wait_for_device(backend_);
    return (now_seconds() - begin) / calls;
  };
  timed(1);  // what is done once
  if (world_.ranks() > 1) world_.barrier();
  // Rank 0 says how often, since all must meet in each collective.
  const double first = std::stod(world_.broadcast_text(fmt::format("{}", timed(1))));
  const int calls = std::clamp(static_cast<int>(round_seconds / std::max(first, 1e-7)), 1, 10000);
  const int rounds = first * calls * most_rounds > most_seconds ? 3 : most_rounds;
  std::vector<double> all;
  for (int r = 0; r < rounds; ++r) all.push_back(timed(calls));
  // In the slower half something else ran; the fastest alone is luck.
  std::sort(all.begin(), all.end());
  const std::size_t half = (all.size() + 1) / 2;
  return std::accumulate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(half), 0.0) / static_cast<double>(half);
}

double rounded(double value) {
  if (value <= 0) return 0;
  const double scale = std::pow(10.0, std::floor(std::log10(value)) - 3);
  return std::round(value / scale) * scale;
}

}  // namespace tessera
