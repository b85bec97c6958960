#include "train/data/data_order.hpp"

#include <bit>

#include "kernels/elementwise/elementwise.hpp"

namespace tessera {
namespace {

constexpr int rounds = 6;
constexpr std::uint64_t stream_of_files = ~std::uint64_t{0};  // that of no epoch's round

std::uint64_t permute(std::uint64_t seed, std::uint64_t epoch, int half_bits, std::uint64_t x) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = x >> half_bits, right = x & mask;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const std::uint64_t mixed = kernels::counter_random(seed, epoch * rounds + round, right) & mask;
    const std::uint64_t next = left ^ mixed;
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

}  // namespace

std::int64_t sample_at(std::uint64_t seed, std::int64_t samples, std::int64_t cursor) {
  const auto n = static_cast<std::uint64_t>(samples);
  const auto epoch = static_cast<std::uint64_t>(cursor / samples);
  const int half_bits = (std::bit_width(n) + 1) / 2;
  auto x = static_cast<std::uint64_t>(cursor % samples);
  do x = permute(seed, epoch, half_bits, x);
  while (x >= n);
  return static_cast<std::int64_t>(x);
}

std::uint64_t seed_of_file(std::uint64_t seed, std::size_t number) {
  return number == 0 ? seed : kernels::counter_random(seed, stream_of_files, number);
}

}  // namespace tessera
