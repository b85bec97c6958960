#include "generate/task_pass.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace tessera {

std::vector<PiecePlace> place_pieces(std::span<const TaskPiece> pieces, std::int64_t rows, std::int64_t row_length, std::size_t most) {
  std::vector<std::int64_t> used(static_cast<std::size_t>(rows), 0);
  std::vector<PiecePlace> places;
  for (const TaskPiece& piece : pieces.first(std::min(most, pieces.size()))) {
    TESSERA_REQUIRE(piece.places() <= row_length, "{} places in rows of {}", piece.places(), row_length);
    const auto row = std::ranges::find_if(used, [&](std::int64_t n) { return n + piece.places() <= row_length; });
    if (row == used.end()) break;
    places.push_back({row - used.begin(), *row});
    *row += piece.places();
  }
  return places;
}

void write_pass(std::span<const TaskPiece> pieces, std::span<const PiecePlace> places, std::int64_t row_length, const PassInputs& to) {
  std::ranges::fill(to.tokens, 0), std::ranges::fill(to.targets, 0), std::ranges::fill(to.weights, 0), std::ranges::fill(to.groups, -1);
  std::ranges::fill(to.document_starts, 0), std::ranges::fill(to.padding, 1);
  for (std::size_t p = 0; p < places.size(); ++p) {
    const auto n = static_cast<std::size_t>(pieces[p].places()), counted = static_cast<std::size_t>(pieces[p].counted);
    const auto first = static_cast<std::size_t>(places[p].row * row_length + places[p].begin);
    std::ranges::copy(pieces[p].tokens.first(n), to.tokens.begin() + static_cast<std::ptrdiff_t>(first));
    std::ranges::copy(pieces[p].tokens.last(counted), to.targets.begin() + static_cast<std::ptrdiff_t>(first + n - counted));
    std::ranges::fill(to.weights.subspan(first + n - counted, counted), 1.0f);
    std::ranges::fill(to.groups.subspan(first, n), static_cast<std::int32_t>(p));
    if (!to.padding.empty()) std::ranges::fill(to.padding.subspan(first, n), 0);
    if (to.document_starts.empty()) continue;
    std::ranges::fill(to.document_starts.subspan(first, n), static_cast<std::int32_t>(places[p].begin));
    // Until another piece comes here.
    const auto end = static_cast<std::size_t>((places[p].row + 1) * row_length);
    std::ranges::fill(to.document_starts.subspan(first + n, end - first - n),
                      static_cast<std::int32_t>(places[p].begin + pieces[p].places()));
  }
}

}  // namespace tessera
