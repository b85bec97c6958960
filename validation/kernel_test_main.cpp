// The main of folders whose tests run kernels: on TESSERA_TEST_THREADS threads (CMake), or as many as TEST_THREADS in the environment says.
#include <cstdlib>

#include "memory/runtime.hpp"
#include "validation/test_run.hpp"

int main(int argc, char** argv) {
  tessera::start_tests(argc, argv);
  const char* wanted = std::getenv("TEST_THREADS");
  const tessera::KernelRuntime runtime(wanted ? std::atoi(wanted) : TESSERA_TEST_THREADS);
  return tessera::run_all_tests();
}
