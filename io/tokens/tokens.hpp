// Token files: HDF5 (dataset "tokens" uint16 or uint32, dataset "documents" int64 offsets, dataset "loss_mask" where not all tokens count
// in the loss; of preferences "labels" uint8 or "margins" float32) or little-endian .bin as nanoGPT and llm.c write it.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "base/words.hpp"
#include "io/tokens/token_checks.hpp"

namespace tessera::io {

/// An open token file, used by one thread at a time. Errors (ExitCode::data) name the file and the position and say what to do.
class TokenFile {
 public:
  /// Opens HDF5 and headed .bin by their first bytes, and what else is called .bin; `bin_ids`: bin_layout. Holds what the file declares
  /// against its size, and takes its checksums from itself or from the file beside it: 8 bytes for each 32,768 tokens, which stay in
  /// memory.
  explicit TokenFile(const std::string& path, BinIds bin_ids = BinIds::automatic);
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;

  const std::string& path() const;
  std::int64_t tokens() const;
  std::int64_t bytes() const;      ///< of the file
  std::int64_t documents() const;  ///< 0 where the format does not say
  /// The token that each document begins with, as the file says; empty where the format does not. Fails where the writer's digest differs.
  std::vector<std::int64_t> read_documents() const;
  /// Vocabulary that the writer declared (attribute "vocab"), 0 where it did not.
  std::int64_t declared_vocab() const;
  std::string tokenizer() const;         ///< attribute "tokenizer", "" where unknown
  std::string tokenizer_digest() const;  ///< attribute "tokenizer.xxh3", its tokenizer_digest; "" where it has none, or it is unknown
  /// Attribute "kind".
  TokenSet set() const;
  /// Of TokenSet::labels: of each document 1 where it is desirable, else 0. Of TokenSet::pairs: of each by how much its chosen document is
  /// better, empty where the file does not say. Fails where the writer's digest differs.
  std::vector<std::uint8_t> read_labels() const;
  std::vector<float> read_margins() const;
  std::int64_t end_token() const;  ///< attribute "end_token", which ends each document; -1: none does, or it is unknown
  std::size_t token_bytes() const;
  /// Some tokens may not count in the loss: dataset "loss_mask", a bit each.
  bool masked() const;

  /// What is known of all tokens; null where nobody has read them all: scan them, then accept.
  const TokenFacts* facts() const;
  std::int64_t blocks() const { return ceil_div(tokens(), block_tokens); }
  /// Reads blocks [first, last) for the first time. An id >= vocab fails, naming file, position and id.
  TokenSums scan(std::int64_t first, std::int64_t last, std::int64_t vocab) const;
  /// Takes what scans of all blocks found. Fails where the file has changed since it was opened.
  void accept(TokenSums all);
  /// Fails where facts() knows of an id >= vocab.
  void require_ids_below(std::int64_t vocab) const;
  /// Keeps what was accepted in the file beside, so that the next start need not scan. Throws Error(storage).
  void keep() const;

  /// Tokens [begin, begin + out.size()). Once there are checksums, no token is returned that was not compared: its block is copied whole,
  /// the copy is compared, and the token is taken from the copy, each time anew but for the last two blocks, whose copies are kept. So
  /// what is written over the file while it is open fails, as damage does. A token id >= vocab fails, naming file, position and id.
  void read(std::int64_t begin, std::span<std::int32_t> out, std::int64_t vocab) const;
  /// Of tokens [begin, begin + weights.size()) puts 0 into the places of those that do not count in the loss. The mask is compared as
  /// tokens are.
  void drop_uncounted(std::int64_t begin, std::span<float> weights) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What TokenizeOptions::format may be.
inline constexpr const char* input_formats[] = {"auto", "text", "jsonl", "json", "parquet"};

struct TokenizeOptions {
  std::string tokenizer = "byte";  ///< byte: token = byte value, 256 separates documents (vocab 257); or the folder of a Hugging Face model
  /// In the order in which they are taken: text (one document), JSON lines, an array of JSON or Parquet (a document a line, object or row)
  /// with a text, or with a prompt and a completion, which alone counts in the loss. "-" is standard input; a pattern (* ? [ ]) stands for
  /// the files that it meets.
  std::vector<std::string> inputs;
  /// text, jsonl, json, parquet, or auto: of each input, by its bytes (form_of).
  std::string format = "auto";
  std::int64_t document = 0;  ///< of several JSON documents in one input the one to take, from 1; 0: there is one
  std::string field = {};     ///< the key or column of a text, or with `chat` of messages; "": the usual ones
  std::string output_dir;     ///< writes train.h5 and, with validation > 0, val.h5
  double validation = 0;      ///< share of the documents (of the tokens, when there is one document) that goes to val.h5: the tail
  /// Bytes that a line, an object, a text of a row, or a text that cannot be tokenized in parts may have; 0: any. By a model's tokenizer a
  /// worker takes up to 260 times as much memory: 8.1 GiB for 32 MiB of random letters, 3.7 GiB for words.
  std::int64_t longest_line = std::int64_t{32} << 20;
  bool progress = false;           ///< a progress line on the terminal
  std::string python = "python3";  ///< has the packages that read a model's tokenizer, and Parquet
  // Of a model's tokenizer:
  /// Objects are preferences: pairs of completions, or completions with labels (preferences.py). With `chat` their texts are turns.
  bool preferences = false;
  std::int64_t longest_sequence = 0;      ///< with `preferences`: tokens of a prompt with a completion that are kept; 0: all
  bool chat = false;                      ///< conversations, which the model's template renders; the assistant's turns count in the loss
  std::string chat_template = {};         ///< with `chat` or `preferences`: TokenizerSource::chat_template
  std::vector<std::string> ignored = {};  ///< with `chat` or `preferences`: keys of lines and messages that are not for the model
  std::string end_token = {};             ///< ends each document; "": the one that the model's files name
  std::int64_t train_bpe = 0;  ///< a byte-level BPE of so many tokens is learnt from the input first, in output_dir/tokenizer; 0: none
  std::int64_t patience_seconds = 600;                  ///< how long a worker may go without an answer, before it is ended
  std::int64_t worker_memory = std::int64_t{16} << 30;  ///< bytes that a worker may take, but for one that learns; 0: any
  int workers = 0;  ///< processes that tokenize beside each other, 0: one a core; what is written does not depend on them
};
/// What the lines of preference data came to.
struct PreferenceCounts {
  std::int64_t documents = 0;                           ///< pairs, or completions with labels, that were written
  std::int64_t equal = 0;                               ///< pairs whose completions are the same
  std::int64_t without_prompt = 0;                      ///< of those, left out: nothing says where their prompt ends
  std::int64_t too_long = 0;                            ///< left out: the prompt alone is as long as a sequence may be
  std::int64_t truncated = 0;                           ///< completions
  std::int64_t desirable = 0;                           ///< completions with the label true
  std::int64_t chosen_tokens = 0, rejected_tokens = 0;  ///< of completions
  void add(const PreferenceCounts& more) {
    documents += more.documents, desirable += more.desirable;
    chosen_tokens += more.chosen_tokens, rejected_tokens += more.rejected_tokens;
  }
};

struct TokenizeResult {
  std::int64_t train_tokens = 0, validation_tokens = 0;
  std::string inputs = {};  ///< the name of the only one, or how many there were
  std::int64_t documents = 0, vocab = 0;
  std::int64_t train_counted = -1, validation_counted = -1;  ///< tokens that count in the loss; -1: all
  std::vector<std::string> unused = {};                      ///< keys and columns that no document is made of
  TokenSet set = TokenSet::documents;
  PreferenceCounts preferences = {};
  std::string tokenizer = "byte", digest = {};  ///< its name, and its tokenizer_digest, "" of bytes
};
/// Streams the inputs, files or pipes: memory does not grow with them. Invalid UTF-8 (file, line, byte offset), an empty file, broken JSON
/// (line) are refused before anything is left in output_dir.
TokenizeResult tokenize(const TokenizeOptions&);

}  // namespace tessera::io
