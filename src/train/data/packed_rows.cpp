#include "train/data/packed_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include "base/check.hpp"
#include "train/data/data_order.hpp"

namespace tessera {
namespace {

constexpr std::size_t most_open = 4096;
constexpr std::int64_t least_places = 2;  // of a document of preferences

}  // namespace

PackedRows::PackedRows(const Documents& documents, const io::TokenFile& file, const PackingOptions& options)
    : options_(options), set_(file.set()) {
  set_ == io::TokenSet::documents ? cut(documents, file) : cut_preferences(documents, file);
  if (pieces_.empty() && left_out_ > 0)
    fail(ExitCode::data, "{}: the prompt alone fills a sequence of batch.sequence_length {} in all that it holds. Set a longer one.",
         file.path(), options_.places);
  if (pieces_.empty())
    fail(ExitCode::data, "{}: none of its {} documents has two tokens, which a token and its target need. Use other data.", file.path(),
         documents.count());
  sort_by_row(assign());
}

void PackedRows::cut_preferences(const Documents& documents, const io::TokenFile& file) {
  const std::int64_t T = options_.places, n = together();
  const char* const what = n == 2 ? "pair" : "completion";
  for (std::int64_t group = 0; group < documents.count() / n; ++group) {
    std::array<PackedDocument, 2> pieces{};
    std::array<std::int64_t, 2> takes{};
    for (std::int64_t k = 0; k < n; ++k) {
      const std::int64_t d = group * n + k, begin = documents.begin_of(d), places = documents.end_of(d) - begin - 1;
      if (places < 1)
        fail(ExitCode::data, "{}: document {} has one token, but must hold a prompt and a completion. Tokenize again.", file.path(), d);
      pieces[static_cast<std::size_t>(k)] = {.begin = begin, .places = places, .document = d};
      takes[static_cast<std::size_t>(k)] = std::max(least_places, places);
    }
    const bool too_long = takes[0] + takes[1] > T;
    if (too_long && options_.too_long == TooLong::refuse)
      fail(ExitCode::data,
           "{}: {} {} takes {} places (documents of {}{} tokens from token {} on), but batch.sequence_length is {}. Set data.too_long = "
           "\"truncate\", which keeps the first tokens, or a longer sequence.",
           file.path(), what, group, takes[0] + takes[1], pieces[0].places + 1, n == 2 ? fmt::format(" and {}", pieces[1].places + 1) : "",
           pieces[0].begin, T);
    bool learns = true;
    for (std::int64_t k = 0; k < n && too_long; ++k) {
      PackedDocument& piece = pieces[static_cast<std::size_t>(k)];
      const std::int64_t room = n == 2 ? std::max(T / 2, T - takes[static_cast<std::size_t>(1 - k)]) : T;
      if (piece.places <= room) continue;
      piece.places = room;
      float counts = 1;  // of the last target: those before it of a completion count with it
      file.drop_uncounted(piece.begin + room, {&counts, 1});
      learns = learns && counts != 0;
    }
    ++(learns ? documents_ : left_out_);
    if (!learns) continue;
    too_long_ += too_long;
    pieces_.insert(pieces_.end(), pieces.begin(), pieces.begin() + n);
  }
}

void PackedRows::cut(const Documents& documents, const io::TokenFile& file) {
  const std::int64_t T = options_.places;
  for (std::int64_t d = 0; d < documents.count(); ++d) {
    const std::int64_t begin = documents.begin_of(d), end = documents.end_of(d);
    std::int64_t places = end - begin - 1;
    documents_ += places > 0;
    if (places > T) {
      if (options_.too_long == TooLong::refuse)
        fail(ExitCode::data,
             "{}: document {} has {} tokens (from {} on), but a sequence of batch.sequence_length {} takes {}. Set data.too_long to "
             "\"truncate\" or \"split\", or a longer sequence.",
             file.path(), d, end - begin, begin, T, T + 1);
      ++too_long_;
      if (options_.too_long == TooLong::truncate) places = T;
    }
    for (std::int64_t at = 0; at < places; at += T) pieces_.push_back({begin + at, std::min(T, places - at), d});
  }
}

std::int64_t PackedRows::width(std::int64_t group) const {
  std::int64_t places = 0;
  for (std::int64_t k = group * together(); k < (group + 1) * together(); ++k) {
    const std::int64_t of = pieces_[static_cast<std::size_t>(k)].places;
    places += set_ == io::TokenSet::documents ? of : std::max(least_places, of);
  }
  return places;
}

std::vector<std::int64_t> PackedRows::assign() const {
  const std::int64_t n = groups();
  std::vector<std::int64_t> row_of(static_cast<std::size_t>(n));
  if (options_.one_a_row) {
    std::iota(row_of.begin(), row_of.end(), 0);
    return row_of;
  }
  std::set<std::pair<std::int64_t, std::int64_t>> open;  // room, row
  std::int64_t rows = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t group = sample_at(options_.seed, n, i), places = width(group);
    std::pair<std::int64_t, std::int64_t> row{options_.places, rows};
    if (const auto fits = open.lower_bound({places, 0}); fits != open.end())
      row = *fits, open.erase(fits);
    else
      ++rows;
    row_of[static_cast<std::size_t>(group)] = row.second;
    if (row.first > places) open.emplace(row.first - places, row.second);
    if (open.size() > most_open) open.erase(open.begin());
  }
  return row_of;
}

void PackedRows::sort_by_row(const std::vector<std::int64_t>& row_of) {
  first_.assign(static_cast<std::size_t>(*std::ranges::max_element(row_of)) + 2, 0);
  const auto row_of_piece = [&](std::size_t piece) {
    return static_cast<std::size_t>(row_of[piece / static_cast<std::size_t>(together())]);
  };
  for (std::size_t i = 0; i < pieces_.size(); ++i) ++first_[row_of_piece(i) + 1];
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  std::vector<std::int64_t> next(first_.begin(), first_.end() - 1);
  std::vector<PackedDocument> sorted(pieces_.size());
  for (std::size_t i = 0; i < pieces_.size(); ++i) sorted[static_cast<std::size_t>(next[row_of_piece(i)]++)] = pieces_[i];
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
  const char* const what = set_ == io::TokenSet::pairs ? "pairs" : set_ == io::TokenSet::labels ? "completions" : "documents";
  std::string text = fmt::format("{} {} in {} sequences of {}, {:.1f} % of them padding", documents_, what, rows(), options_.places,
                                 100.0 * static_cast<double>(all - filled) / static_cast<double>(all));
  if (too_long_ > 0)
    text += fmt::format("; {} longer than that {} {}", too_long_, too_long_ == 1 ? "was" : "were",
                        options_.too_long == TooLong::split ? "split" : "truncated");
  if (left_out_ > 0) text += fmt::format("; {} left out, whose prompt alone fills its share of a sequence", left_out_);
  return text;
}

}  // namespace tessera
