// The tokenizer of a Hugging Face model: tokenizer.json, read by the `tokenizers` package in a process of Python (worker.py).
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/tokenizer_digest.hpp"
#include "io/tokenizer/worker.hpp"

namespace tessera::io {

class Child;

struct TokenizerSource {
  std::string python = "python3";                   ///< a Python with the packages tokenizers and jinja2
  std::string folder = {};                          ///< with tokenizer.json, and what of the model's other small files there is
  std::string end_token = {};                       ///< ends a document; "": the one that the folder's files name
  std::string chat_template = {};                   ///< the name of one of the model's, or of one of ours, or a file; "": the model's
  std::chrono::seconds patience = worker_patience;  ///< how long a request may go without an answer (ask_worker), but for the first
  std::int64_t memory = worker_memory;              ///< bytes that the worker may take; 0: any
};

struct TokenizerFacts {
  std::string name;                 ///< of the folder
  std::string digest;               ///< tokenizer_digest of the folder
  std::int64_t vocab = 0;           ///< largest id + 1
  std::int32_t end = 0;             ///< ends a document
  std::string end_name;             ///< its text
  std::vector<std::int32_t> stops;  ///< end a text that is generated: `end`, and what the model's files name beside it
  bool cuts = false;                ///< a text may be cut between two lines that are not blank, and no token changes
  std::vector<std::string> notes;   ///< what of the folder's files is of no use, or was taken in an unusual way, for the log
  std::string package;              ///< name and version of what reads tokenizer.json
};

/// A piece of a document, in UTF-8; whether it counts in the loss.
struct TextPiece {
  std::string text;
  bool counts = true;
};
/// A document, or a part of one that was cut where TokenizerFacts::cuts allows it.
struct DocumentPart {
  bool begins = true, ends = true;
  std::vector<TextPiece> pieces;
};
/// Their tokens: of a whole document with what the tokenizer puts around a text, and with the end token.
struct Encoded {
  bool begins = true;
  std::vector<std::uint32_t> ids;
  std::vector<std::uint8_t> counts;  ///< of each token 0 or 1; empty where all count. A token counts with any of its characters
  std::optional<bool> label = {};    ///< of a completion
  std::optional<float> margin = {};  ///< of a pair, with both of its documents
};

/// How conversations stand in lines.
struct ChatKeys {
  std::string field = {};  ///< the key under which an object has its messages; "": one of those that conversations are known by
  std::vector<std::string> ignored = {};  ///< keys that are not for the model
};

/// A conversation as an object of JSON, and where it stands ("chat.jsonl:3").
struct ChatLine {
  std::string place;
  std::string text;
};

/// How preferences stand in lines (preferences.py).
struct PreferenceKeys {
  bool texts_are_turns = false;           ///< of a user and of the assistant; else they follow each other
  std::int64_t longest = 0;               ///< tokens of a document that are kept; 0: all
  std::vector<std::string> ignored = {};  ///< keys that are not for the model
};
/// Lines that are not what they were expected to be.
struct PreferenceNotes {
  std::int64_t equal = 0, without_prompt = 0, too_long = 0, truncated = 0;  ///< as in PreferenceCounts
};

/// One worker, used by one thread at a time. Errors: Error(environment) where Python or a package is missing, or the worker ends or hangs;
/// Error(data) where a file cannot be read; Error(usage) where it is not clear which token ends a document.
class Tokenizer {
 public:
  explicit Tokenizer(const TokenizerSource& source);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  const TokenizerFacts& facts() const { return facts_; }
  /// The pieces of a document are tokenized as one text. With `masked` the answer says which tokens count.
  std::vector<Encoded> encode(const std::vector<DocumentPart>& parts, bool masked);
  /// Conversations, rendered with the model's chat template: the assistant's turns count. A document ends as the template ends it, and
  /// where that is with no token that ends a text, with the end token, which counts after a turn that does. What else a line has is used,
  /// goes to `unused` by name (each name once), or is refused. Error(data) names the place of a line; Error(usage): there is no template.
  std::vector<Encoded> encode_chats(const std::vector<ChatLine>& lines, const ChatKeys& keys, std::vector<std::string>& unused);

  /// Preferences: of a pair two documents, the chosen one first, else one. What counts begins with the first token that differs from those
  /// of the prompt alone, in both documents of a pair at one place. Texts end with the end token, conversations as in encode_chats.
  /// `unused` and errors as there.
  std::vector<Encoded> encode_preferences(const std::vector<ChatLine>& lines, const PreferenceKeys& keys, std::vector<std::string>& unused,
                                          PreferenceNotes& notes);
  /// A text to be continued: with what the tokenizer puts before one, and no end. Where that is nothing, the end token, after which
  /// documents begin.
  std::vector<std::int32_t> encode_prompt(const std::string& text);
  /// A user's message, after a system's where that is not "", rendered up to the model's turn.
  std::vector<std::int32_t> encode_question(const std::string& system, const std::string& text);
  /// The text of messages (a list of them), rendered up to the model's turn. Errors as encode_chats.
  std::string render_prompt(const ChatLine& messages);
  /// Text of tokens that come one by one after a prompt: begin, next with each, rest after the last. No character is split; special tokens
  /// are no text.
  void begin_text(const std::vector<std::int32_t>& prompt);
  std::string next_text(std::int32_t token);
  std::string rest_of_text();

 private:
  std::string ask(std::string_view operation, std::string_view request);
  std::string ask(std::string_view operation, std::string_view request, std::chrono::seconds patience);
  std::string folder_;
  std::unique_ptr<Child> child_;
  std::chrono::seconds patience_;
  TokenizerFacts facts_;
};

}  // namespace tessera::io
