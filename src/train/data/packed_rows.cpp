#include "train/data/packed_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/check.hpp"
#include "train/data/data_order.hpp"

namespace tessera {
namespace {

constexpr std::size_t most_open = 4096;

}  // namespace

PackedRows::PackedRows(const Documents& documents, std::int64_t tokens, const std::string& path, const PackingOptions& options)
    : options_(options) {
  cut(documents, tokens, path);
  if (pieces_.empty())
    fail(ExitCode::data, "{}: none of its {} documents has two tokens, which a token and its target need. Use other data.", path,
         documents.count());
  sort_by_row(assign());
}

void PackedRows::cut(const Documents& documents, std::int64_t tokens, const std::string& path) {
  const std::int64_t T = options_.places;
  for (std::int64_t d = 0; d < documents.count(); ++d) {
    const std::int64_t begin = documents.begin_of(d), end = d + 1 < documents.count() ? documents.begin_of(d + 1) : tokens;
    std::int64_t places = end - begin - 1;
    documents_ += places > 0;
    if (places > T) {
      if (options_.too_long == TooLong::refuse)
        fail(ExitCode::data,
             "{}: document {} has {} tokens (from {} on), but a sequence of batch.sequence_length {} takes {}. Set data.too_long to "
             "\"truncate\" or \"split\", or a longer sequence.",
             path, d, end - begin, begin, T, T + 1);
      ++too_long_;
      if (options_.too_long == TooLong::truncate) places = T;
    }
    for (std::int64_t at = 0; at < places; at += T) pieces_.push_back({begin + at, std::min(T, places - at)});
  }
}

std::vector<std::int64_t> PackedRows::assign() const {
  const auto n = static_cast<std::int64_t>(pieces_.size());
  std::vector<std::int64_t> row_of(pieces_.size());
  std::set<std::pair<std::int64_t, std::int64_t>> open;  // room, row
  std::int64_t rows = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto piece = static_cast<std::size_t>(sample_at(options_.seed, n, i));
    const std::int64_t places = pieces_[piece].places;
    std::pair<std::int64_t, std::int64_t> row{options_.places, rows};
    if (const auto fits = open.lower_bound({places, 0}); fits != open.end())
      row = *fits, open.erase(fits);
    else
      ++rows;
    row_of[piece] = row.second;
    if (row.first > places) open.emplace(row.first - places, row.second);
    if (open.size() > most_open) open.erase(open.begin());
  }
  return row_of;
}

void PackedRows::sort_by_row(const std::vector<std::int64_t>& row_of) {
  first_.assign(static_cast<std::size_t>(*std::ranges::max_element(row_of)) + 2, 0);
  for (const std::int64_t row : row_of) ++first_[static_cast<std::size_t>(row) + 1];
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  std::vector<std::int64_t> next(first_.begin(), first_.end() - 1);
  std::vector<PackedDocument> sorted(pieces_.size());
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    sorted[static_cast<std::size_t>(next[static_cast<std::size_t>(row_of[i])]++)] = pieces_[i];
  pieces_ = std::move(sorted);
}

std::span<const PackedDocument> PackedRows::row(std::int64_t row) const {
  const auto r = static_cast<std::size_t>(row);
  return std::span(pieces_).subspan(static_cast<std::size_t>(first_[r]), static_cast<std::size_t>(first_[r + 1] - first_[r]));
}

std::string PackedRows::describe() const {
  std::int64_t filled = 0;
  for (const PackedDocument& piece : pieces_) filled += piece.places;
  const std::int64_t all = rows() * options_.places;
  std::string text = fmt::format("{} documents in {} sequences of {}, {:.1f} % of them padding", documents_, rows(), options_.places,
                                 100.0 * static_cast<double>(all - filled) / static_cast<double>(all));
  if (too_long_ > 0)
    text += fmt::format("; {} longer than that {} {}", too_long_, too_long_ == 1 ? "was" : "were",
                        options_.too_long == TooLong::split ? "split" : "truncated");
  return text;
}

}  // namespace tessera
