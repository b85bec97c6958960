// Writes the tests' small checkpoint into a folder, for tests of commands.  make_checkpoint FOLDER SHARDS|cut
#include <string_view>

#include "checkpoint_model.hpp"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  using tessera::io::test::SmallModel;
  const bool cut = std::string_view(argv[2]) == "cut";
  (cut ? tessera::io::test::cut_again(SmallModel(1), 3) : SmallModel(std::atoi(argv[2]))).save(argv[1]);
  return 0;
}
