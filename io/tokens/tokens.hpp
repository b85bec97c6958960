// Token files: HDF5 (dataset "tokens" uint16 or uint32, dataset "documents" int64 offsets) or plain little-endian uint16 .bin as nanoGPT
// and llm.c write it.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tessera::io {

/// An open token file. Errors (ExitCode::data) name the file and the position and say what to do.
class TokenFile {
 public:
  /// Opens .h5/.hdf5 or .bin (nanoGPT's headerless form, or llm.c's with its 1024-byte header of magic 20240520). Checks that the file is
  /// whole.
  explicit TokenFile(const std::string& path);
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;

  std::int64_t tokens() const;
  std::int64_t documents() const;  ///< 0 where the format does not say
  /// Vocabulary that the writer declared (attribute "vocab"), 0 where it did not.
  std::int64_t declared_vocab() const;
  std::string tokenizer() const;  ///< attribute "tokenizer", "" where unknown
  /// Tokens [begin, begin + out.size()). A token id >= vocab fails, naming file, position and id.
  void read(std::int64_t begin, std::span<std::int32_t> out, std::int64_t vocab) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct TokenizeOptions {
  std::string tokenizer = "byte";  ///< byte: token = byte value, 256 separates documents (vocab 257)
  std::string input;               ///< text file (one document), or .jsonl with a "text" field a line (a document a line)
  std::string output_dir;          ///< writes train.h5 and, with validation > 0, val.h5
  double validation = 0;           ///< share of the documents (of the tokens, when there is one document) that goes to val.h5: the tail
  bool progress = false;           ///< a progress line on the terminal
};
struct TokenizeResult {
  std::int64_t train_tokens = 0, validation_tokens = 0, documents = 0, vocab = 0;
};
/// Streams the input: memory does not grow with the file. Invalid UTF-8 (file, line, byte offset), an empty file, broken JSON (line) are
/// refused before anything is left in output_dir.
TokenizeResult tokenize(const TokenizeOptions&);

}  // namespace tessera::io
