#include "memory/runtime.hpp"

#include <gtest/gtest.h>
#include <omp.h>

#include <atomic>

#include "kernels/parallel.hpp"

namespace tessera {
namespace {

/// Pieces that a kernel of `n` indices is cut into.
int pieces(std::int64_t n) {
  std::atomic<int> count{0};
  std::atomic<std::int64_t> indices{0};
  kernels::parallel_ranges(n, 1, [&](std::int64_t begin, std::int64_t end) { ++count, indices += end - begin; });
  EXPECT_EQ(indices.load(), n);
  return count;
}

// Last in this binary: Kokkos can be started once.
TEST(Runtime, OneAfterAnotherEachHasItsThreads) {
  const int before = omp_get_max_threads();
  kernels::plan_for_threads(7);
  {
    const KeptKokkos kept;
    for (const int threads : {2, 1, 3, 2}) {
      EXPECT_EQ(runtime_threads(), 0);
      EXPECT_EQ(kernels::threads(), 7);  // as planned where none lives
      EXPECT_EQ(pieces(100), 1);
      const KernelRuntime runtime(threads);
      EXPECT_EQ(runtime_threads(), threads);
      EXPECT_EQ(kernels::threads(), threads);
      EXPECT_EQ(omp_get_max_threads(), threads);
      EXPECT_EQ(pieces(100), threads);
    }
    static int ended = 0;
    {
      const KernelRuntime runtime(1);
      at_runtime_end([] { ++ended; });
      EXPECT_EQ(ended, 0);
    }
    EXPECT_EQ(ended, 1);
  }
  EXPECT_EQ(omp_get_max_threads(), before);
  EXPECT_EQ(runtime_threads(), 0);
}

}  // namespace
}  // namespace tessera
