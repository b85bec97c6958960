// Other random values for the same tests: TESSERA_TEST_SEED=N. A failure tells its seed, so that it can be repeated.
#pragma once
#include <cstdio>
#include <cstdlib>

namespace tessera::kernels::testing {

/// What is added to the seeds of random values: 0 where TESSERA_TEST_SEED is not set. Spread over all bits, since a test's own seeds are
/// neighbours: with seeds that only follow one another an array of one run would be another array of the next.
inline unsigned test_seed() {
  static const unsigned seed = [] {
    const char* text = std::getenv("TESSERA_TEST_SEED");
    const auto given = static_cast<unsigned>(text ? std::strtoul(text, nullptr, 10) : 0);
    if (given != 0) std::fprintf(stderr, "random values of TESSERA_TEST_SEED=%u\n", given);
    return given * 0x9e3779b1u;
  }();
  return seed;
}

}  // namespace tessera::kernels::testing
