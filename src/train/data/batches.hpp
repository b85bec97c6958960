// Fills micro-batches from token files.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "deck/deck.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/tokens/tokens.hpp"
#include "train/data/packed_rows.hpp"
#include "train/data/token_check.hpp"

namespace tessera {

/// Of preferences: a sequence is a prompt with a completion, and those of a micro-batch are numbered from 0, row by row. Of pairs, 2k is
/// the chosen sequence of pair k and 2k + 1 the rejected one. A row of T places has at most T / 2 of them.
struct PreferenceInputs {
  std::span<std::int32_t> sequences{};  ///< of targets: the number of the sequence that each counts in, or -1
  std::span<std::int32_t> counts{};     ///< of each sequence: its targets that count, on whatever rank; 0 after the last
  std::span<double> reference_logps{};  ///< of each sequence, of its completion by the reference; 0 after the last
  std::span<float> margins{};           ///< of each pair; 0 where the file has none
  std::span<std::uint8_t> labels{};     ///< of each sequence: 1 where it is desirable
  std::int64_t first = 0;               ///< number of the first sequence of the row that is read
};

/// What a run makes of its files.
struct PreferenceUse {
  io::TokenSet set = io::TokenSet::documents;  ///< what each of them must hold; of `documents` nothing below counts
  std::string reference = {};                  ///< file of ReferenceLogps; "": none
};

/// What the host writes of a micro-batch (Engine); those that nobody asks for are empty.
struct MicroBatch {
  std::span<std::int32_t> tokens, targets;    ///< this rank's positions of B sequences each
  std::span<std::int32_t> document_starts{};  ///< (B, T), of whole sequences: where in its sequence the document of each token begins;
  bool in_ring = false;                       ///< or in a ring of this rank's positions, as AttentionForward::document_starts counts them
  std::span<float> weights{};                 ///< of targets: what the loss of each counts for
  std::span<std::int32_t> groups{};           ///< this rank's positions: the file of data.train that each token is of
  std::span<std::int32_t> padding{};          ///< this rank's positions: 1 where a token is padding
  PreferenceInputs preferences{};
};

/// A sequence that is read: a sample, or one of the equal parts that follow each other in it (deck/ramp.hpp).
struct Sequence {
  std::int64_t sample, part, parts;
  constexpr Sequence(std::int64_t s, std::int64_t of = 0, std::int64_t all = 1) : sample(s), part(of), parts(all) {}
};
/// Of those that samples from `first` on are cut into.
constexpr Sequence sequence_at(std::int64_t first, std::int64_t number, std::int64_t parts) {
  return {first + number / parts, number % parts, parts};
}

/// One token file seen as samples of T inputs, whose targets are the same tokens one further on: sample k begins at token k*T, or with
/// data.packing = "documents" or of preferences is a row of PackedRows, and padding that counts in no loss: the row's first token, each a
/// document of its own.
class SampleFile {
 public:
  /// Throws Error(data) when the file holds not one sample, declares a vocabulary larger than `vocab`, does not say where its documents
  /// begin and `data` masks them, or holds one that is too long for a sample and refused.
  /// A file of preferences where `use` wants another kind, or texts, is Error(data) too.
  SampleFile(const std::string& path, std::int64_t sequence_length, std::int64_t vocab, const DataKeys& data = {}, std::int64_t seed = 1,
             const PreferenceUse& use = {});
  std::int64_t samples() const { return samples_; }
  std::int64_t tokens() const { return file_.tokens(); }
  /// Throws Error(data) where a token is outside the vocabulary or not what was written, or where ranks see other documents; see
  /// check_tokens.
  void check(const World* world);
  const std::string& path() const { return file_.path(); }
  std::string tokenizer() const { return file_.tokenizer(); }
  std::string tokenizer_digest() const { return file_.tokenizer_digest(); }
  /// What a file that was checked holds, for the checkpoints of a run.
  io::CheckpointData record() const;
  /// Of two files that were checked: the same tokens, of which the same count in the loss.
  bool holds_the_same(const SampleFile& other) const;
  /// Some targets may not count in the loss: their weights are 0.
  bool masked() const { return file_.masked() || documents_; }
  /// Row `row` of a micro-batch whose rows have these positions of the inputs and targets of a sequence, one range after the other. Where
  /// documents are masked, a target that is a token of another one has no weight. With data.packing = "documents" samples have one part.
  /// Returns how many tokens of padding the whole sequence ends in.
  std::int64_t read(const Sequence& sequence, std::span<const Range> positions, const MicroBatch& to, std::int64_t row);
  /// Sequences of preferences in a sample.
  std::int64_t sequences(std::int64_t sample) const { return static_cast<std::int64_t>(packed_->row(sample).size()); }
  /// All pairs of the file have a margin.
  bool margins() const { return !margins_.empty(); }
  /// Tokens of the longest document of a sequence, where documents are masked; else of the sequence.
  std::int64_t longest(const Sequence& sequence) const;

 private:
  /// Of where documents begin, and of what the file says of them.
  Hash128 documents_hash() const;
  void read_preferences(std::int64_t sample, std::span<const float> weights, std::span<std::int32_t> sequences,
                        const PreferenceInputs& to) const;
  std::int64_t read_packed(std::int64_t sample, std::span<const Range> positions, const MicroBatch& to, std::int64_t row);

  io::TokenFile file_;
  std::int64_t T_, vocab_, samples_;
  std::optional<Documents> documents_;  ///< where they are masked
  std::optional<PackedRows> packed_;    ///< where samples are made of whole ones
  std::vector<float> margins_;          ///< of pairs
  std::vector<std::uint8_t> labels_;    ///< of documents
  std::vector<std::int32_t> scratch_;
};

}  // namespace tessera
