// Token files. The first byte of an input says which: .h5 where it is `5`, else .bin; the rest is the file.
#include <algorithm>
#include <vector>

#include "io/tokens/tokens.hpp"
#include "validation/fuzz/fuzz.hpp"

namespace tessera::fuzz {

const ExitCode refusal = ExitCode::data;

void read_input(std::string_view bytes) {
  if (bytes.empty()) return;
  const char* name = bytes.front() == '5' ? "tokens.h5" : "tokens.bin";
  const io::TokenFile file(folder_with(name, bytes.substr(1)) + "/" + name);
  constexpr std::int64_t vocab = 300;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min<std::int64_t>(file.tokens(), 5000)));
  file.read(file.tokens() - std::ssize(ids), ids, vocab);
  if (std::ranges::any_of(ids, [](std::int32_t id) { return id < 0 || id >= vocab; })) defect("an id that is none of the vocabulary");
  std::vector<float> weights(ids.size(), 1);
  if (file.set() == io::TokenSet::labels) file.read_labels();
  if (file.set() == io::TokenSet::pairs) file.read_margins();
  if (file.masked()) file.drop_uncounted(file.tokens() - std::ssize(ids), weights);
}

}  // namespace tessera::fuzz
