#include <algorithm>
#include <array>
#include <utility>

#include "base/json.hpp"
#include "base/printable.hpp"
#include "io/files/posix_file.hpp"
#include "io/safetensors/safetensors_model.hpp"

namespace tessera::io {
namespace {

constexpr std::uint64_t most_header_bytes = 100 << 20;

constexpr std::array<std::pair<std::string_view, std::int64_t>, 19> types = {{{"F64", 8},
                                                                              {"F32", 4},
                                                                              {"F16", 2},
                                                                              {"BF16", 2},
                                                                              {"F8_E4M3", 1},
                                                                              {"F8_E5M2", 1},
                                                                              {"F8_E8M0", 1},
                                                                              {"F8_E4M3FNUZ", 1},
                                                                              {"F8_E5M2FNUZ", 1},
                                                                              {"I64", 8},
                                                                              {"I32", 4},
                                                                              {"I16", 2},
                                                                              {"I8", 1},
                                                                              {"U64", 8},
                                                                              {"U32", 4},
                                                                              {"U16", 2},
                                                                              {"U8", 1},
                                                                              {"BOOL", 1},
                                                                              {"C64", 8}}};

SafetensorsTensor parse_tensor(const std::string& path, const std::string& name, const Json& j, std::int64_t data_begin,
                               std::int64_t data_bytes) {
  SafetensorsTensor t;
  t.name = name;
  t.type = j.at("dtype").get<std::string>();
  t.shape = Shape(j.at("shape").get<std::vector<std::int64_t>>());
  const auto offsets = j.at("data_offsets").get<std::vector<std::int64_t>>();
  std::int64_t bytes = safetensors_type_bytes(t.type);
  if (bytes == 0)
    fail(ExitCode::data, "{}: tensor {} is of type {}, which is not one of safetensors. Get the file again.", path, name,
         printable_name(t.type));
  for (const std::int64_t d : t.shape.dims)
    if (d < 0 || __builtin_mul_overflow(bytes, d, &bytes)) fail(ExitCode::data, "{}: tensor {} has an impossible shape.", path, name);
  if (offsets.size() != 2 || offsets[0] < 0 || offsets[0] > offsets[1] || offsets[1] - offsets[0] != bytes)
    fail(ExitCode::data, "{}: the bytes of tensor {} do not fit its shape {}. The file is damaged: get it again.", path, name,
         t.shape.str());
  if (offsets[1] > data_bytes) fail(ExitCode::data, "{}: the file is truncated inside tensor {}. Get it again.", path, name);
  t.begin = data_begin + offsets[0], t.end = data_begin + offsets[1];
  return t;
}

/// The format allows no byte that is no tensor's, and none that is two tensors'.
void require_cover(const std::string& path, const std::vector<SafetensorsTensor>& tensors, std::int64_t begin, std::int64_t end) {
  std::string before = "the header";
  for (const SafetensorsTensor& t : tensors) {
    if (t.begin < begin) fail(ExitCode::data, "{}: tensor {} overlaps {}. The file is damaged: get it again.", path, t.name, before);
    if (t.begin > begin)
      fail(ExitCode::data, "{}: {} bytes before tensor {} belong to no tensor. The file is damaged: get it again.", path, t.begin - begin,
           t.name);
    begin = t.end, before = "tensor " + t.name;
  }
  if (begin != end)
    fail(ExitCode::data, "{}: {} bytes after {} belong to no tensor. The file is damaged: get it again.", path, end - begin, before);
}

}  // namespace

std::int64_t safetensors_type_bytes(std::string_view type) {
  const auto found = std::ranges::find(types, type, &std::pair<std::string_view, std::int64_t>::first);
  return found == types.end() ? 0 : found->second;
}

std::vector<SafetensorsTensor> read_safetensors_header(const std::string& path) {
  const auto file = PosixFile::open(path, ExitCode::data);
  const std::int64_t size = file.size();
  unsigned char raw[8] = {};
  std::uint64_t length = 0;
  if (file.read(0, raw, 8) != 8) fail(ExitCode::data, "{}: {} bytes are not a safetensors file. Get it again.", path, size);
  for (int i = 0; i < 8; ++i) length |= static_cast<std::uint64_t>(raw[i]) << (8 * i);
  if (length > static_cast<std::uint64_t>(size) - 8 || length > most_header_bytes)
    fail(ExitCode::data, "{}: a header of {} bytes does not fit a file of {}: it is truncated or not a safetensors file. Get it again.",
         path, length, size);
  std::string text(length, '\0');
  if (file.read(8, text.data(), length) != length) fail(ExitCode::data, "{}: the file is truncated. Get it again.", path);
  std::vector<SafetensorsTensor> out;
  const std::int64_t data_begin = 8 + static_cast<std::int64_t>(length);
  try {
    const Json header = Json::parse_strict(text);
    if (!header.is_object()) throw std::runtime_error("it is not an object");
    for (const auto& [name, j] : header.items())
      if (printable_name(name) != name)
        fail(ExitCode::data, "{}: the name {} has characters that no name has. The file is damaged: get it again.", path,
             printable_name(name));
      else if (name != "__metadata__")
        out.push_back(parse_tensor(path, name, j, data_begin, size - data_begin));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    fail(ExitCode::data, "{}: its header cannot be parsed ({}). The file is damaged: get it again.", path, e.what());
  }
  std::ranges::stable_sort(out, {}, [](const SafetensorsTensor& t) { return std::pair(t.begin, t.end); });
  require_cover(path, out, data_begin, size);
  return out;
}

std::vector<std::byte> read_safetensors_tensor(const std::string& path, const SafetensorsTensor& tensor) {
  const auto file = PosixFile::open(path, ExitCode::data);
  std::vector<std::byte> out(static_cast<std::size_t>(tensor.end - tensor.begin));
  if (file.read(tensor.begin, out.data(), out.size()) != out.size())
    fail(ExitCode::data, "{}: the file is truncated inside tensor {}. Get it again.", path, tensor.name);
  return out;
}

}  // namespace tessera::io
