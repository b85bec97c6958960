// The main of tests that need no setting up of their own.
#include "validation/test_run.hpp"

int main(int argc, char** argv) {
  tessera::start_tests(argc, argv);
  return tessera::run_all_tests();
}
