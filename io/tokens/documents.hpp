// What becomes of documents: tokens of a file, by the byte tokenizer or by a model's.
#pragma once
#include <cstdint>
#include <deque>
#include <future>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/encoder_pool.hpp"
#include "io/tokens/token_writer.hpp"
#include "io/tokens/tokens.hpp"

namespace tessera {
class Json;
}

namespace tessera::io {

/// Takes documents one after the other, each in pieces, for one file.
class Documents {
 public:
  virtual ~Documents() = default;
  /// `place`: where it stands in which input, for messages.
  virtual void begin(const std::string& place) = 0;
  virtual void text(std::string_view piece, bool counts) = 0;
  virtual void end() = 0;
  /// After the last.
  virtual void finish() {}
};

/// A token is a byte, and one more stands between documents.
class ByteDocuments : public Documents {
 public:
  explicit ByteDocuments(TokenWriter& writer) : writer_(writer) {}
  void begin(const std::string& place) override;
  void text(std::string_view piece, bool counts) override { writer_.add(piece, counts); }
  void end() override {}

 private:
  TokenWriter& writer_;
};

/// What workers are asked, in the order in which the answers are written.
class EncodingQueue {
 public:
  explicit EncodingQueue(EncoderPool& pool) : pool_(pool) {}
  EncoderPool& pool() { return pool_; }
  /// The answer goes to `writer`. Waits for earlier answers where many are under way; throws the error of the first that failed.
  void add(EncoderPool::Work work, TokenWriter& writer);
  void finish();
  /// Of what was written: `documents`, `desirable`, and the tokens of completions.
  const PreferenceCounts& preferences() const { return preferences_; }

 private:
  void write_first();
  void add_preferences(const std::vector<Encoded>& documents, TokenWriter& writer);
  struct Pending {
    std::future<std::vector<Encoded>> answer;
    TokenWriter* writer;
  };
  EncoderPool& pool_;
  std::deque<Pending> pending_;
  PreferenceCounts preferences_;
};

/// Documents of a model's tokenizer: gathered into batches for the workers. A long text is cut between lines, where the tokenizer allows
/// it.
class ModelDocuments : public Documents {
 public:
  /// `longest`: bytes of a text that cannot be cut; 0: any. One of more is an Error(data).
  ModelDocuments(TokenWriter& writer, EncodingQueue& queue, bool masked, std::int64_t longest)
      : writer_(writer), queue_(queue), masked_(masked), longest_(longest) {}
  void begin(const std::string& place) override;
  void text(std::string_view piece, bool counts) override;
  void end() override;
  /// Hands over what is left.
  void finish() override { flush(); }

 private:
  void cut();
  void flush();
  TokenWriter& writer_;
  EncodingQueue& queue_;
  std::string place_;
  bool masked_;
  std::int64_t longest_;
  DocumentPart part_;  ///< of the document under way
  std::vector<DocumentPart> batch_;
  std::size_t part_bytes_ = 0, batch_bytes_ = 0;
};

/// Names of keys that nothing is made of, as several threads meet them.
class SeenKeys {
 public:
  void add(const std::vector<std::string>& names) {
    const std::lock_guard lock(mutex_);
    names_.insert(names.begin(), names.end());
  }
  const std::set<std::string>& names() const { return names_; }  ///< once the work is done

 private:
  std::mutex mutex_;
  std::set<std::string> names_;
};

/// Documents that are an object of JSON each, gathered into batches for the workers.
class ObjectDocuments : public Documents {
 public:
  ObjectDocuments(TokenWriter& writer, EncodingQueue& queue) : writer_(writer), queue_(queue) {}
  void begin(const std::string& place) override { batch_.push_back({place, ""}); }
  void text(std::string_view piece, bool) override { batch_.back().text += piece, bytes_ += piece.size(); }
  void end() override;
  void finish() override;

 private:
  /// What a worker does with a batch.
  virtual EncoderPool::Work work_on(std::vector<ChatLine> batch) const = 0;
  TokenWriter& writer_;
  EncodingQueue& queue_;
  std::vector<ChatLine> batch_;
  std::size_t bytes_ = 0;
};

/// Conversations, by a model's chat template.
class ChatDocuments : public ObjectDocuments {
 public:
  ChatDocuments(TokenWriter& writer, EncodingQueue& queue, ChatKeys keys, SeenKeys& unused)
      : ObjectDocuments(writer, queue), keys_(std::move(keys)), unused_(unused) {}

 private:
  EncoderPool::Work work_on(std::vector<ChatLine> batch) const override;
  ChatKeys keys_;
  SeenKeys& unused_;
};

/// What the workers found in preferences, as several threads meet it.
class FoundPreferences {
 public:
  void add(const PreferenceNotes& notes) {
    const std::lock_guard lock(mutex_);
    notes_.equal += notes.equal, notes_.without_prompt += notes.without_prompt;
    notes_.too_long += notes.too_long, notes_.truncated += notes.truncated;
  }
  const PreferenceNotes& notes() const { return notes_; }  ///< once the work is done

 private:
  std::mutex mutex_;
  PreferenceNotes notes_;
};

/// Preferences, of any form that a worker knows.
class PreferenceDocuments : public ObjectDocuments {
 public:
  PreferenceDocuments(TokenWriter& writer, EncodingQueue& queue, PreferenceKeys keys, SeenKeys& unused, FoundPreferences& found)
      : ObjectDocuments(writer, queue), keys_(std::move(keys)), unused_(unused), found_(found) {}

 private:
  EncoderPool::Work work_on(std::vector<ChatLine> batch) const override;
  PreferenceKeys keys_;
  SeenKeys& unused_;
  FoundPreferences& found_;
};

/// The same in bytes, of texts alone: "prompt" with "chosen" and "rejected", or with a "completion" and its label. The separator ends each.
class BytePreferences : public Documents {
 public:
  BytePreferences(TokenWriter& writer, PreferenceKeys keys, SeenKeys& unused, FoundPreferences& found)
      : writer_(writer), keys_(std::move(keys)), unused_(unused), found_(found) {}
  void begin(const std::string& place) override { place_ = place, object_.clear(); }
  void text(std::string_view piece, bool) override { object_ += piece; }
  void end() override;
  void finish() override;
  /// As EncodingQueue::preferences().
  const PreferenceCounts& counts() const { return counts_; }

 private:
  const std::string& text_of(const Json& line, const char* key) const;
  /// Returns how many tokens count.
  std::int64_t write(const std::string& prompt, const std::string& completion);
  TokenWriter& writer_;
  PreferenceKeys keys_;
  SeenKeys& unused_;
  FoundPreferences& found_;
  std::string place_, object_;
  PreferenceCounts counts_;
  PreferenceNotes notes_;
};

/// Where a text may be cut: the last byte in it that begins a line and no blank, after a line that ends in no blank; 0 where there is none.
std::size_t last_cut(std::string_view text);

}  // namespace tessera::io
