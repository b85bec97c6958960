#include "models/llmc_model.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <functional>

#include "base/regular_file.hpp"

namespace tessera {
namespace {

constexpr std::int32_t model_magic = 20240326, token_magic = 20240520, version_f32 = 3, version_bf16 = 5;
constexpr std::int64_t header_bytes = 1024;
constexpr std::int64_t most_of_each = 1 << 24, most_layers = 10'000;
using Header = std::array<std::int32_t, 256>;

/// A tensor of each layer, or one outside of them.
struct Row {
  const char *before, *after;  ///< of the layer's number; after null: outside of layers
  std::int64_t rows, columns;  ///< columns 0: a vector
};

std::vector<Row> rows_of(const LlmcModel& m) {
  const std::int64_t C = m.width;
  const char* h = "transformer.h.";
  return {{"transformer.wte.weight", nullptr, m.padded_vocab, C},
          {"transformer.wpe.weight", nullptr, m.context, C},
          {h, ".ln_1.weight", C, 0},
          {h, ".ln_1.bias", C, 0},
          {h, ".attn.c_attn.weight", 3 * C, C},
          {h, ".attn.c_attn.bias", 3 * C, 0},
          {h, ".attn.c_proj.weight", C, C},
          {h, ".attn.c_proj.bias", C, 0},
          {h, ".ln_2.weight", C, 0},
          {h, ".ln_2.bias", C, 0},
          {h, ".mlp.c_fc.weight", 4 * C, C},
          {h, ".mlp.c_fc.bias", 4 * C, 0},
          {h, ".mlp.c_proj.weight", C, 4 * C},
          {h, ".mlp.c_proj.bias", C, 0},
          {"transformer.ln_f.weight", nullptr, C, 0},
          {"transformer.ln_f.bias", nullptr, C, 0}};
}

double elements_of(const LlmcModel& m) {
  double sum = 0;
  for (const Row& row : rows_of(m))
    sum += static_cast<double>(row.after ? m.layers : 1) * static_cast<double>(row.rows) *
           static_cast<double>(row.columns == 0 ? 1 : row.columns);
  return sum;
}

std::string fault_of_kind(const Header& h) {
  if (h[0] == token_magic) return "it holds tokens of llm.c, not a model. Name it in data.train.";
  if (h[0] != model_magic)
    return fmt::format(
        "it is not a checkpoint of llm.c's GPT-2: it begins with {}, but such a file begins with {}. Give such a file, or the folder of a "
        "model as transformers saves it.",
        h[0], model_magic);
  if (h[1] != version_f32 && h[1] != version_bf16)
    return fmt::format(
        "it is a checkpoint of llm.c in version {}, but versions {} (fp32) and {} (bf16) are read. Write it again with a version of llm.c "
        "that makes one of these.",
        h[1], version_f32, version_bf16);
  return "";
}

std::string fault_of_sizes(const LlmcModel& m) {
  struct Size {
    const char* name;
    std::int64_t value, most;
  };
  for (const Size& size : {Size{"max_seq_len", m.context, most_of_each}, Size{"vocab_size", m.vocab, most_of_each},
                           Size{"num_layers", m.layers, most_layers}, Size{"num_heads", m.heads, most_of_each},
                           Size{"channels", m.width, most_of_each}, Size{"padded_vocab_size", m.padded_vocab, most_of_each}})
    if (size.value < 1 || size.value > size.most)
      return fmt::format("its header is damaged: {} is {}, which is not between 1 and {}. Copy or make it again.", size.name, size.value,
                         size.most);
  if (m.padded_vocab < m.vocab)
    return fmt::format("its header is damaged: padded_vocab_size {} is less than vocab_size {}. Copy or make it again.", m.padded_vocab,
                       m.vocab);
  if (m.width % m.heads != 0)
    return fmt::format("its header is damaged: channels {} is not a multiple of num_heads {}. Copy or make it again.", m.width, m.heads);
  const double expected = static_cast<double>(header_bytes) + elements_of(m) * static_cast<double>(size_of(m.dtype));
  if (expected == static_cast<double>(m.bytes)) return "";
  return fmt::format("its header promises {:.0f} bytes, but the file has {}: it is {}. Copy or make it again.", expected, m.bytes,
                     static_cast<double>(m.bytes) < expected ? "truncated" : "too long");
}

}  // namespace

std::vector<LlmcModel::Tensor> LlmcModel::tensors() const {
  std::vector<Tensor> all;
  std::int64_t at = header_bytes;
  for (const Row& row : rows_of(*this)) {
    const Shape shape = row.columns == 0 ? Shape{row.rows} : Shape{row.rows, row.columns};
    for (std::int64_t layer = 0; layer < (row.after ? layers : 1); ++layer) {
      all.push_back({row.after ? fmt::format("{}{}{}", row.before, layer, row.after) : row.before, shape, at});
      at += shape.elements() * static_cast<std::int64_t>(size_of(dtype));
    }
  }
  all.front().shape = {vocab, width};
  return all;
}

bool is_llmc_model(const std::string& path) {
  std::error_code ignored;  // what cannot be looked at is refused by who reads it
  return path.ends_with(".bin") && !std::filesystem::is_directory(path, ignored);
}

LlmcModel read_llmc_model(const std::string& path, std::string& fault) {
  LlmcModel m;
  const int file = open_regular(path, fault);
  if (file < 0) return m;
  Header h{};
  struct stat state = {};
  const bool read = ::fstat(file, &state) == 0 && ::pread(file, h.data(), sizeof h, 0) == static_cast<ssize_t>(sizeof h);
  ::close(file);
  if (!read) {
    fault = fmt::format("it is shorter than the header of a checkpoint of llm.c, {} bytes. Copy or make it again.", header_bytes);
    return m;
  }
  if (fault = fault_of_kind(h); !fault.empty()) return m;
  m = {.context = h[2], .vocab = h[3], .layers = h[4], .heads = h[5], .width = h[6], .padded_vocab = h[7]};
  m.dtype = h[1] == version_bf16 ? DType::bf16 : DType::f32, m.bytes = state.st_size;
  fault = fault_of_sizes(m);
  return m;
}

}  // namespace tessera
