// Writes the tests' small checkpoint into a folder, for tests of commands.  make_checkpoint FOLDER SHARDS
#include "checkpoint_model.hpp"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  tessera::io::test::SmallModel(std::atoi(argv[2])).save(argv[1]);
  return 0;
}
