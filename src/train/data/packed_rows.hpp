// Whole documents put into sequences: data.packing = "documents", and preferences.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "deck/modes.hpp"
#include "train/data/documents.hpp"

namespace tessera {

/// A document in a row, or a part of one: `places` inputs from token `begin` of the file on, whose targets are the tokens one further on.
/// So n tokens take n - 1 places.
struct PackedDocument {
  std::int64_t begin = 0, places = 0;
  std::int64_t document = 0;  ///< its number in the file
};

struct PackingOptions {
  std::int64_t places = 0;             ///< T: of a row
  TooLong too_long = TooLong::refuse;  ///< of a document of more than T + 1 tokens, or of a pair that takes more than T places
  std::uint64_t seed = 0;              ///< in whose order documents are put into rows
  bool one_a_row = false;              ///< of preferences: a row holds one pair, or one completion with a label
};

/// Rows of pieces, a function of the documents' offsets and the options alone. Documents come in an order of the seed, and each goes to the
/// row with the least room that takes it (best fit) among those with room, of which 4096 are kept open.
///
/// Of preferences the two documents of a pair lie in one row, the rejected one behind the chosen one, and a document takes two places or
/// more: so a row has at most T / 2. TooLong::truncate keeps the first tokens: each of both has half of the row, and what the other leaves
/// of its half. A pair that then has a completion without a target is left out.
class PackedRows {
 public:
  /// Error(data) names the file: a document or pair that is too long and refused, or no document of two tokens.
  PackedRows(const Documents& documents, const io::TokenFile& file, const PackingOptions& options);

  std::int64_t rows() const { return static_cast<std::int64_t>(first_.size()) - 1; }
  std::span<const PackedDocument> row(std::int64_t row) const;
  /// "8000 documents in 1003 sequences of 2048, 1.7 % of them padding; 3 were split": of documents that were cut, how many.
  std::string describe() const;

 private:
  void cut(const Documents& documents, const io::TokenFile& file);
  void cut_preferences(const Documents& documents, const io::TokenFile& file);
  /// Documents that stay together, one behind the other in pieces_.
  std::int64_t together() const { return set_ == io::TokenSet::pairs ? 2 : 1; }
  std::int64_t groups() const { return static_cast<std::int64_t>(pieces_.size()) / together(); }
  /// The places that a group takes.
  std::int64_t width(std::int64_t group) const;
  /// The row of each group.
  std::vector<std::int64_t> assign() const;
  void sort_by_row(const std::vector<std::int64_t>& row_of);

  PackingOptions options_;
  io::TokenSet set_;
  std::vector<PackedDocument> pieces_;  ///< row by row
  std::vector<std::int64_t> first_;     ///< piece of each row, and where the last one ends
  std::int64_t documents_ = 0, too_long_ = 0, left_out_ = 0;
};

}  // namespace tessera
