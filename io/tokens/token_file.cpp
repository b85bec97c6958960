#include <cstring>
#include <optional>

#include "base/check.hpp"
#include "io/files/posix_file.hpp"
#include "io/hdf5/hdf5.hpp"
#include "io/tokens/tokens.hpp"

namespace tessera::io {
namespace {

bool ends_with_any(const std::string& path, std::initializer_list<std::string_view> endings) {
  for (auto e : endings)
    if (path.ends_with(e)) return true;
  return false;
}

}  // namespace

struct TokenFile::Impl {
  std::string path;
  std::int64_t tokens = 0, documents = 0, vocab = 0;
  std::string tokenizer;
  std::size_t width = 2;  // bytes of a token in the file
  // One of the two forms:
  std::optional<hdf5::Dataset> dataset;
  PosixFile raw;
  std::int64_t raw_begin = 0;  // byte of the first token

  void open_hdf5() {
    auto file = hdf5::File::open(path, ExitCode::data);
    if (!file.has("tokens"))
      fail(ExitCode::data, "{}: it has no dataset 'tokens'. Make token files with `tessera tokenize`, or write uint16 or uint32 'tokens'.",
           path);
    dataset.emplace(file.open_dataset("tokens"));
    auto element = dataset->element();
    if (dataset->dims().size() != 1 || (element != hdf5::Element::u16 && element != hdf5::Element::u32))
      fail(ExitCode::data, "{}: the dataset 'tokens' must be one-dimensional and of type uint16 or uint32.", path);
    width = element == hdf5::Element::u16 ? 2 : 4;
    tokens = dataset->elements();
    if (file.has("documents")) documents = file.open_dataset("documents").elements();
    vocab = file.integer_attribute("vocab").value_or(0);
    tokenizer = file.text_attribute("tokenizer").value_or("");
  }

  /// nanoGPT: uint16 and nothing else. llm.c: 256 int32, of which magic, version and number of tokens come first.
  void open_bin() {
    raw = PosixFile::open(path, ExitCode::data);
    auto bytes = raw.size();
    std::int32_t header[3] = {0, 0, 0};
    bool has_header =
        bytes >= 1024 && raw.read(0, header, sizeof header) == sizeof header && (header[0] == 20240520 || header[0] == 20240801);
    if (has_header) {
      width = header[0] == 20240520 ? 2 : 4;  // the second is llm.c's form for Llama-3 tokens
      raw_begin = 1024, tokens = header[2];
      auto expected = raw_begin + tokens * static_cast<std::int64_t>(width);
      if (bytes != expected)
        fail(ExitCode::data, "{}: its header promises {} tokens ({} bytes) but the file has {} bytes: it is {}. Copy or make it again.",
             path, tokens, expected, bytes, bytes < expected ? "truncated" : "too long");
    } else {
      if (bytes % 2 != 0)
        fail(ExitCode::data, "{}: {} bytes are not whole uint16 tokens: the file is truncated. Copy or make it again.", path, bytes);
      tokens = bytes / 2;
    }
  }

  /// The file's own numbers, into the last bytes of `out`.
  void load(std::int64_t begin, char* to, std::size_t count) const {
    if (dataset) {
      hdf5::Slab slab{{begin}, {static_cast<std::int64_t>(count)}};
      dataset->read_slab(slab, width == 2 ? hdf5::Element::u16 : hdf5::Element::u32, to);
    } else if (raw.read(raw_begin + begin * static_cast<std::int64_t>(width), to, count * width) != count * width) {
      fail(ExitCode::data, "{}: the file ends before token {}: it was cut after it was opened.", path,
           begin + static_cast<std::int64_t>(count));
    }
  }
};

TokenFile::TokenFile(const std::string& path) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  PosixFile::open(path, ExitCode::data);  // says why, where the file is missing or closed to us
  if (ends_with_any(path, {".h5", ".hdf5"})) {
    impl_->open_hdf5();
  } else if (path.ends_with(".bin")) {
    impl_->open_bin();
  } else {
    fail(ExitCode::data, "{}: a token file ends in .h5, .hdf5 or .bin. Make one from text with `tessera tokenize`.", path);
  }
  if (impl_->tokens <= 0) fail(ExitCode::data, "{}: it holds no tokens.", path);
}
TokenFile::~TokenFile() = default;
TokenFile::TokenFile(TokenFile&&) noexcept = default;

std::int64_t TokenFile::tokens() const { return impl_->tokens; }
std::int64_t TokenFile::documents() const { return impl_->documents; }
std::int64_t TokenFile::declared_vocab() const { return impl_->vocab; }
std::string TokenFile::tokenizer() const { return impl_->tokenizer; }

void TokenFile::read(std::int64_t begin, std::span<std::int32_t> out, std::int64_t vocab) const {
  TESSERA_REQUIRE(begin >= 0 && begin + static_cast<std::int64_t>(out.size()) <= impl_->tokens, "{}: [{}, +{}) of {}", impl_->path, begin,
                  out.size(), impl_->tokens);
  // The narrow numbers land in the tail of `out` and are widened from the front: each is read before its place is overwritten, and no
  // second buffer is needed.
  auto width = impl_->width;
  char* narrow = reinterpret_cast<char*>(out.data()) + out.size() * (4 - width);
  impl_->load(begin, narrow, out.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint32_t id = 0;
    std::memcpy(&id, narrow + i * width, width);
    if (static_cast<std::int64_t>(id) >= vocab)
      fail(ExitCode::data,
           "{}: token {} at position {} is outside the vocabulary of {}.{} Set model.vocab to that of the tokenizer, or tokenize again.",
           impl_->path, id, begin + static_cast<std::int64_t>(i), vocab,
           impl_->vocab > 0 ? fmt::format(" The file declares a vocabulary of {}.", impl_->vocab) : "");
    out[i] = static_cast<std::int32_t>(id);
  }
}

}  // namespace tessera::io
