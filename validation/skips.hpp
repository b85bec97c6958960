// GoogleTest ends with 0 when every test skipped itself, which reads as success; CTest and scripts/gpu_check must see that nothing ran.
#pragma once
#include <gtest/gtest.h>

namespace tessera {

/// Runs the tests that were chosen. 77 where all of them skipped: "not tested" to CTest (SKIP_RETURN_CODE).
inline int run_all_tests() {
  const int status = RUN_ALL_TESTS();
  const ::testing::UnitTest& done = *::testing::UnitTest::GetInstance();
  const bool none_ran = done.test_to_run_count() > 0 && done.skipped_test_count() == done.test_to_run_count();
  return status == 0 && none_ran ? 77 : status;
}

}  // namespace tessera
