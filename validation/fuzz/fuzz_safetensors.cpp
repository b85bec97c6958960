// A safetensors file. Of an input that begins with `h` the rest is a header alone, and the file has as many bytes as the header asks for,
// up to a bound: so that what lies behind the header's length is reached.
#include <algorithm>
#include <cstring>

#include "io/safetensors/safetensors_model.hpp"
#include "validation/fuzz/fuzz.hpp"

namespace tessera::fuzz {
namespace {

constexpr std::size_t most_values = 4096;

std::string with_values(std::string_view header) {
  std::size_t values = 0;
  // The largest number in the header that a small file can have.
  for (std::size_t at = 0; at < header.size();) {
    std::size_t number = 0, digits = 0;
    while (at < header.size() && header[at] >= '0' && header[at] <= '9' && digits < 6)
      number = 10 * number + static_cast<std::size_t>(header[at++] - '0'), ++digits;
    if (number <= most_values) values = std::max(values, number);
    if (digits == 0) ++at;
  }
  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  return file.append(header).append(values, '\1');
}

}  // namespace

const ExitCode refusal = ExitCode::data;

void read_input(std::string_view bytes) {
  const bool header = !bytes.empty() && bytes.front() == 'h';
  const std::string folder = folder_with("model.safetensors", header ? with_values(bytes.substr(1)) : bytes);
  const io::SafetensorsModel model(folder);
  std::int64_t total = 0;
  for (const auto& tensor : model.tensors()) {
    total += tensor.end - tensor.begin;
    if (model.find(tensor.name) == nullptr) defect("a tensor that cannot be found");
    std::vector<float> values(static_cast<std::size_t>(std::min<std::int64_t>(tensor.shape.elements(), 64)));
    if (tensor.type == "F32" || tensor.type == "BF16" || tensor.type == "F16") model.read_box(tensor, whole_box(tensor.shape), values);
  }
  if (total != model.bytes()) defect("tensors have other bytes than their model");
}

}  // namespace tessera::fuzz
