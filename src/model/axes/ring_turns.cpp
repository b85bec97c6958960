#include "model/axes/ring_turns.hpp"

#include <algorithm>

#include "kernels/attention/passes.hpp"

namespace tessera {
namespace {

std::int64_t chunk_of(const ModelShape& s) { return s.T / (2 * s.cp); }

/// Whether some key of a sequence is behind a query's window.
bool has_window(const ModelShape& s) { return s.kind.window > 0 && s.kind.window < s.T; }

/// Pairs of a query of a chunk and a key of the one that is so many chunks before it.
double pairs_of_chunks(const ModelShape& s, std::int64_t apart) {
  const auto C = static_cast<double>(chunk_of(s));
  if (!has_window(s)) return C * C;
  // Of a query a and a key b, each counted in its chunk, those with a - b of at most this.
  const double most = static_cast<double>(s.kind.window - 1 - apart * chunk_of(s));
  if (most >= C - 1) return C * C;
  if (most >= 0) return C * C - (C - 1 - most) * (C - most) / 2;
  return most <= -C ? 0 : (C + most) * (C + most + 1) / 2;
}

/// Rows of `part` whose positions are below `position`: they come first, since a rank's chunks lie in the order of the sequence.
std::int64_t rows_below(const ModelShape& s, std::int64_t index, const kernels::AttentionRows& part, std::int64_t position) {
  std::int64_t rows = 0, first = 0;
  for (const Range& chunk : positions_of(s, static_cast<int>(index))) {
    const std::int64_t begin = std::max(part.first, first), end = std::min(part.first + part.count, first + chunk.size());
    if (begin < end) rows += std::clamp<std::int64_t>(position - (chunk.begin + begin - first), 0, end - begin);
    first += chunk.size();
  }
  return rows;
}

std::int64_t position_of(const ModelShape& s, std::int64_t index, std::int64_t row) {
  const std::int64_t C = chunk_of(s);
  const std::vector<Range> chunks = positions_of(s, static_cast<int>(index));
  return row < C ? chunks[0].begin + row : chunks[1].begin + row - C;
}

}  // namespace

double most_ring_pairs(const ModelShape& s, std::int64_t step) {
  // In this step a rank has keys of chunks that are `step` before one of its own, or cp - step: it sees most of the nearer ones, and then
  // of those a chunk further, which the ranks see that have the middle of the sequence.
  const std::int64_t apart = std::min(step, s.cp - step);
  return pairs_of_chunks(s, apart) + pairs_of_chunks(s, apart + 1);
}

std::vector<std::int64_t> ring_turns(const ModelShape& s) {
  std::vector<std::int64_t> turns;
  for (std::int64_t step = 1; step < s.cp; ++step)
    if (most_ring_pairs(s, step) > 0) turns.push_back(step);
  return turns;
}

std::optional<kernels::AttentionBlock> ring_block(const ModelShape& s, std::int64_t step) {
  const std::int64_t C = chunk_of(s), here = s.cp_index, there = (here - step + s.cp) % s.cp;
  const auto gap_of = [&](std::int64_t index) { return inside_attention(cut_over_cp(s, static_cast<int>(index))).gap; };
  // Of a rank before this one the first chunk, for all queries; of one after it both, for those of the second.
  const kernels::AttentionRows all{0, 2 * C}, first{0, C}, second{C, C};
  kernels::AttentionBlock block{.shape = attention_shape(inside_attention(s)), .queries = all, .keys = first};
  if (there > here) block.queries = second, block.keys = all;
  block.ahead = position_of(s, here, 0) - position_of(s, there, 0);
  block.keys_gap = {C, gap_of(there)};
  block.shape.gap = {C, gap_of(here)};
  block.shape.window = 0;
  if (!has_window(s)) return block;
  const std::int64_t W = s.kind.window;
  block.queries.count = rows_below(s, here, block.queries, position_of(s, there, block.keys.count - 1) + W);
  if (block.queries.count == 0) return {};
  const std::int64_t hidden = rows_below(s, there, block.keys, position_of(s, here, block.queries.first) + 1 - W);
  block.keys.first += hidden, block.keys.count -= hidden;
  block.shape.window = W;
  // Where the last query sees the first key, all see all.
  const kernels::KeyStarts starts = kernels::attention_passes::key_starts(block);
  if (starts.of(static_cast<std::int32_t>(block.queries.count - 1)) == 0) block.shape.window = 0;
  return block;
}

void ring_document_starts(std::span<const std::int32_t> starts, std::span<const Range> positions, std::span<std::int32_t> to) {
  std::int64_t row = 0;
  for (const Range& part : positions)
    for (std::int64_t t = part.begin; t < part.end; ++t, ++row)
      to[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(row - (t - starts[static_cast<std::size_t>(t)]));
}

}  // namespace tessera
