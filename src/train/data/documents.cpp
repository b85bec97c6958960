#include "train/data/documents.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace tessera {

Documents::Documents(const io::TokenFile& file) : begins_(file.read_documents()), tokens_(file.tokens()) {
  if (begins_.empty())
    fail(ExitCode::data,
         "{} does not store where its documents begin, which data.document_mask needs: it has no dataset 'documents'. Make the file with "
         "`tessera tokenize`, or set data.document_mask = false.",
         file.path());
  const auto fallen = std::ranges::adjacent_find(begins_, std::greater{});
  if (begins_.front() == 0 && fallen == begins_.end() && begins_.back() < file.tokens()) {
    if (const auto empty = std::ranges::adjacent_find(begins_); file.set() != io::TokenSet::documents && empty != begins_.end())
      fail(ExitCode::data, "{}: document {} is empty, but each of its documents must hold a prompt and a completion. Tokenize again.",
           file.path(), empty - begins_.begin());
    begins_.erase(std::unique(begins_.begin(), begins_.end()), begins_.end());  // of empty ones nothing is left
    return;
  }
  const auto wrong = begins_.front() != 0 ? begins_.begin() : fallen != begins_.end() ? fallen + 1 : begins_.end() - 1;
  fail(ExitCode::data,
       "{}: document {} of the dataset 'documents' begins at token {}. The first must begin at 0, each after the one before, and all "
       "before the end at {}. Write the file again.",
       file.path(), wrong - begins_.begin(), *wrong, file.tokens());
}

std::vector<std::int64_t>::const_iterator Documents::first_from(std::int64_t token) const {
  return std::ranges::lower_bound(begins_, token);
}

void Documents::find_starts(std::int64_t begin, std::span<std::int32_t> starts) const {
  auto next = first_from(begin + 1);
  std::int32_t start = 0;
  for (std::size_t t = 0; t < starts.size(); ++t) {
    if (next != begins_.end() && *next == begin + static_cast<std::int64_t>(t)) start = static_cast<std::int32_t>(t), ++next;
    starts[t] = start;
  }
}

std::int64_t Documents::longest(std::int64_t begin, std::int64_t places) const {
  std::int64_t most = 0, from = begin;
  for (auto next = first_from(begin); next != begins_.end() && *next < begin + places; ++next)
    most = std::max(most, *next - from), from = *next;
  return std::max(most, begin + places - from);
}

void Documents::drop_first_tokens(std::int64_t begin, std::span<float> weights) const {
  const std::int64_t end = begin + static_cast<std::int64_t>(weights.size());
  for (auto at = first_from(begin); at != begins_.end() && *at < end; ++at) weights[static_cast<std::size_t>(*at - begin)] = 0;
}

Hash128 Documents::hash() const {
  Hasher hasher;
  hasher.update(begins_.data(), begins_.size() * sizeof(std::int64_t));
  return hasher.digest();
}

std::int64_t squares_of_documents(std::span<const std::int32_t> starts, std::int64_t places) {
  std::int64_t squares = 0;  // n^2 is the sum of the first n odd numbers
  for (std::size_t i = 0; i < starts.size(); ++i) squares += 2 * (static_cast<std::int64_t>(i) % places - starts[i]) + 1;
  return squares;
}

}  // namespace tessera
