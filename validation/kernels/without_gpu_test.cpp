// A program without the CUDA backend refuses a kernel on a GPU, and says which and what to build.
#include <gtest/gtest.h>

#include <string>

#include "base/backend.hpp"
#include "base/error.hpp"
#include "kernels/sums/sums.hpp"

namespace tessera::kernels::without_gpu_test {
namespace {

TEST(WithoutGpu, AKernelOnAGpuIsRefused) {
#ifdef TESSERA_CUDA
  GTEST_SKIP() << "this build has the CUDA backend";
#else
  Context context;
  context.backend = Backend::cuda;
  try {
    sum_of_squares(context, SumOfSquares{});
    FAIL() << "it ran";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::environment);
    EXPECT_NE(std::string(error.what()).find("sum_of_squares"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("preset cuda"), std::string::npos) << error.what();
  }
#endif
}

}  // namespace
}  // namespace tessera::kernels::without_gpu_test
