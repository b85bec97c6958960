// Pieces of text that go through a model together.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

/// Tokens of which the last `counted` are scored, each after those before it: n tokens take n - 1 places of a row.
struct TaskPiece {
  std::span<const std::int32_t> tokens;
  std::int64_t counted = 0;
  std::int64_t places() const { return std::ssize(tokens) - 1; }
};

/// Where a piece lies in a pass.
struct PiecePlace {
  std::int64_t row = 0, begin = 0;
};

/// Places of the first of these pieces, which take at most a row each: every one in the first row with room, as many as there is room for,
/// `most` at most.
std::vector<PiecePlace> place_pieces(std::span<const TaskPiece> pieces, std::int64_t rows, std::int64_t row_length, std::size_t most);

/// What the host writes of a pass of (rows, T) places. `document_starts` is empty where a pass has one piece, `padding` where no
/// router counts it.
struct PassInputs {
  std::span<std::int32_t> tokens, targets;
  std::span<float> weights;
  std::span<std::int32_t> groups, document_starts, padding;
};

/// Writes pieces at their places: each a document and a group of its own, and what stays empty behind them in a row one more, of no group.
void write_pass(std::span<const TaskPiece> pieces, std::span<const PiecePlace> places, std::int64_t row_length, const PassInputs& to);

}  // namespace tessera
