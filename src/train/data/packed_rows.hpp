// Whole documents put into sequences: data.packing = "documents".
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
};

struct PackingOptions {
  std::int64_t places = 0;             ///< T: of a row
  TooLong too_long = TooLong::refuse;  ///< of a document of more than T + 1 tokens
  std::uint64_t seed = 0;              ///< in whose order documents are put into rows
};

/// Rows of pieces, a function of the documents' offsets and the options alone. Documents come in an order of the seed, and each goes to the
/// row with the least room that takes it (best fit) among those with room, of which 4096 are kept open.
class PackedRows {
 public:
  /// `path` names the file in Error(data): a document that is too long and refused, or no document of two tokens. `tokens` are its tokens.
  PackedRows(const Documents& documents, std::int64_t tokens, const std::string& path, const PackingOptions& options);

  std::int64_t rows() const { return static_cast<std::int64_t>(first_.size()) - 1; }
  std::span<const PackedDocument> row(std::int64_t row) const;
  /// "8000 documents in 1003 sequences of 2048, 1.7 % of them padding; 3 were split": of documents that were cut, how many.
  std::string describe() const;

 private:
  void cut(const Documents& documents, std::int64_t tokens, const std::string& path);
  /// The row of each piece.
  std::vector<std::int64_t> assign() const;
  void sort_by_row(const std::vector<std::int64_t>& row_of);

  PackingOptions options_;
  std::vector<PackedDocument> pieces_;  ///< row by row
  std::vector<std::int64_t> first_;     ///< piece of each row, and where the last one ends
  std::int64_t documents_ = 0, too_long_ = 0;
};

}  // namespace tessera
