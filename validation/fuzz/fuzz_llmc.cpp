// The header of a checkpoint of llm.c. Of an input that begins with `h` the rest is the header's beginning, and the file has the bytes that
// a GPT-2 of its numbers has, up to a bound, all of them zeros.
#include <unistd.h>

#include <array>
#include <cstring>
#include <set>

#include "models/llmc_model.hpp"
#include "validation/fuzz/fuzz.hpp"

namespace tessera::fuzz {
namespace {

constexpr std::size_t llmc_header = 1024;
constexpr double most_bytes = 1 << 30;  // which no memory holds: the file is sparse

/// As llm.c counts them: a block has 12 width^2 weights and 13 width of norms and biases.
double gpt2_bytes(const std::array<std::int32_t, 8>& h) {
  const double context = h[2], layers = h[4], width = h[6], padded = h[7];
  return llmc_header + (h[1] == 5 ? 2 : 4) * ((padded + context) * width + layers * (12 * width * width + 13 * width) + 2 * width);
}

}  // namespace

const ExitCode refusal = ExitCode::data;

void read_input(std::string_view bytes) {
  if (bytes.empty()) return;
  const bool header = bytes.front() == 'h';
  std::string file(bytes.substr(1));
  std::array<std::int32_t, 8> numbers = {};
  if (header) file.resize(llmc_header, '\0');
  if (file.size() >= sizeof numbers) std::memcpy(numbers.data(), file.data(), sizeof numbers);
  const std::string path = folder_with("model.bin", file) + "/model.bin";
  const double expected = gpt2_bytes(numbers);
  if (header && expected >= llmc_header && expected <= most_bytes && ::truncate(path.c_str(), static_cast<off_t>(expected)) != 0)
    defect("the file cannot be made longer");
  std::string fault;
  const LlmcModel model = read_llmc_model(path, fault);
  if (!fault.empty()) fail(refusal, "{}: {}", path, fault);
  if (static_cast<double>(model.bytes) != expected) defect("a file of another length than its header's is taken");
  std::set<std::string> names;
  std::int64_t at = llmc_header;
  for (const LlmcModel::Tensor& tensor : model.tensors()) {
    if (!names.insert(tensor.name).second) defect("two tensors of one name");
    if (tensor.begin < at || tensor.shape.elements() < 1) defect("tensors lie in each other");
    at = tensor.begin + tensor.shape.elements() * static_cast<std::int64_t>(size_of(model.dtype));
  }
  if (at != model.bytes) defect("tensors do not fill their file");
}

}  // namespace tessera::fuzz
