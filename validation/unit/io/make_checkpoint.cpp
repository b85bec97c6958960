// Writes the tests' small checkpoint into a folder, for tests of commands, or token files.
//   make_checkpoint FOLDER SHARDS|cut|changed|narrow|tokens
#include <filesystem>
#include <limits>
#include <string_view>

#include "../altered_checkpoint.hpp"
#include "checkpoint_model.hpp"
#include "io/tokens/token_writer.hpp"

namespace {

/// Two documents of the byte tokenizer, and three of which only the ends count.
void write_tokens(const std::string& folder) {
  std::filesystem::create_directories(folder);
  tessera::io::TokenWriter plain(folder + "/plain.h5", 17, 2), masked(folder + "/masked.h5", 27, 3, true);
  for (const char* text : {"one two three", "four"}) {
    plain.begin_document();
    plain.add(std::string_view(text));
  }
  for (int document = 0; document < 3; ++document) {
    masked.begin_document();
    masked.add(std::string_view("2 + 2 = "), false);
    masked.add(std::string_view("4"));
  }
  for (auto* writer : {&plain, &masked}) {
    writer->close();
    writer->commit();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  using tessera::io::test::SmallModel;
  const std::string_view what = argv[2];
  if (what == "tokens") {
    write_tokens(argv[1]);
    return 0;
  }
  SmallModel model(what == "cut" ? 1 : what == "changed" || what == "narrow" ? 2 : std::atoi(argv[2]));
  if (what == "changed") {  // two values of layers.0.attention.wq by 0.5 and 0.25, and in the moments one that is no number
    auto& weights = model.values[0][1];
    weights[5] += 0.5f, weights[2386] -= 0.25f;
  }
  if (what == "narrow") model.layout.tensors[5] = {"head.bias", {1, 3}, 2, 0};
  const std::string folder = (what == "cut" ? tessera::io::test::cut_again(model, 3) : model).save(argv[1]);
  if (what == "changed") tessera::test::alter_checkpoint(folder, "adam_m", 1, 7, std::numeric_limits<float>::quiet_NaN());
  return 0;
}
