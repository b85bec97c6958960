// A byte-level BPE tokenizer that is learnt from a text (Sennrich et al., arXiv:1508.07909; GPT-2's splits and bytes), by the `tokenizers`
// package in a process of Python (worker.py).
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tessera::io {

class Child;

/// The least vocabulary: every byte, and the token that ends a document.
inline constexpr std::int64_t least_bpe_vocab = 257;

class BpeTrainer {
 public:
  /// `vocab` tokens at most, `end_token` among them. Error(environment): Python or the package is missing.
  BpeTrainer(const std::string& python, std::int64_t vocab, std::string end_token);
  ~BpeTrainer();

  /// Pieces of a document, in UTF-8, cut anywhere.
  void add(std::string_view text);
  void end_document();
  /// Learns, and writes tokenizer.json and tokenizer_config.json into `folder`, which is made where it is missing. Error(storage).
  void write(const std::string& folder);

 private:
  void flush();
  std::unique_ptr<Child> child_;
  std::string end_token_;
  std::string text_;     ///< of the document under way
  std::string request_;  ///< texts that wait to be sent
  std::uint32_t texts_ = 0;
};

}  // namespace tessera::io
