// main() of a GoogleTest binary that runs under mpiexec: rank 0 prints, a failure on any rank fails the run.
#pragma once
#include <gtest/gtest.h>

#include "topology/world.hpp"
#include "validation/test_run.hpp"

namespace tessera::testing {

inline World* current_world = nullptr;
/// The world of this test binary.
inline World& world() { return *current_world; }

/// `prepare` runs once before the tests. A rank that leaves a test early fails the run, by a limit below CTest's, and does not hang it.
inline int run_tests(
    int argc, char** argv, const std::function<void(const World&)>& prepare = [](const World&) {}) {
  start_tests(argc, argv);
  return run_in_world({.collective_timeout_seconds = 120, .finalize_timeout_seconds = 5}, [&](World& world) {
    current_world = &world;
    prepare(world);
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    struct FailuresOnly : ::testing::EmptyTestEventListener {
      void OnTestPartResult(const ::testing::TestPartResult& result) override {
        if (result.failed())
          fmt::print(stderr, "rank {}: {}:{}: {}\n", current_world->rank(), result.file_name() ? result.file_name() : "",
                     result.line_number(), result.message());
      }
    };
    if (world.rank() != 0) {
      delete listeners.Release(listeners.default_result_printer());
      listeners.Append(new FailuresOnly);
    }
    return RUN_ALL_TESTS();
  });
}

}  // namespace tessera::testing
