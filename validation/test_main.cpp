// The main of tests that need no setting up of their own.
#include "validation/skips.hpp"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return tessera::run_all_tests();
}
