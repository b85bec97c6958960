#include "schedule/plan/taken_addresses.hpp"

#include <algorithm>
#include <bit>

namespace tessera {

void AddressRanges::add(Range addresses) {
  const auto first =
      std::lower_bound(ranges_.begin(), ranges_.end(), addresses.begin, [](const Range& r, std::int64_t at) { return r.end < at; });
  auto last = first;
  for (; last != ranges_.end() && last->begin <= addresses.end; ++last)
    addresses = {std::min(addresses.begin, last->begin), std::max(addresses.end, last->end)};
  if (first == last) {
    ranges_.insert(first, addresses);
  } else {
    *first = addresses;
    ranges_.erase(first + 1, last);
  }
}

std::int64_t AddressRanges::past_first_in_way(std::int64_t at, std::int64_t bytes) const {
  const auto next = std::upper_bound(ranges_.begin(), ranges_.end(), at, [](std::int64_t x, const Range& r) { return x < r.end; });
  return next != ranges_.end() && next->begin < at + bytes ? next->end : at;
}

TakenAddresses::TakenAddresses(std::int64_t moments)
    : leaves_(std::bit_ceil(static_cast<std::size_t>(std::max<std::int64_t>(moments, 1)))), nodes_(2 * leaves_) {}

template <class F>
void TakenAddresses::visit_pieces(Moments moments, F f) const {
  auto begin = leaves_ + static_cast<std::size_t>(moments.first), end = leaves_ + static_cast<std::size_t>(moments.last) + 1;
  for (; begin < end; begin /= 2, end /= 2) {
    if (begin % 2 == 1) f(begin++);
    if (end % 2 == 1) f(--end);
  }
}

template <class F>
void TakenAddresses::visit_ancestors(Moments moments, F f) const {
  auto first = leaves_ + static_cast<std::size_t>(moments.first), last = leaves_ + static_cast<std::size_t>(moments.last);
  for (; first > 0; first /= 2, last /= 2) {
    f(first);
    if (last != first) f(last);
  }
}

void TakenAddresses::take(std::span<const Moments> life, Range addresses) {
  if (addresses.size() == 0) return;
  for (const Moments& moments : life) {
    visit_pieces(moments, [&](std::size_t n) {
      nodes_[n].whole.add(addresses);
      nodes_[n].some.add(addresses);
    });
    visit_ancestors(moments, [&](std::size_t n) { nodes_[n].some.add(addresses); });
  }
}

std::int64_t TakenAddresses::first_fit(std::span<const Moments> life, std::int64_t from, std::int64_t bytes) const {
  std::vector<const AddressRanges*> taken;
  auto meet = [&](const AddressRanges& ranges) {
    if (!ranges.empty()) taken.push_back(&ranges);
  };
  for (const Moments& moments : life) {
    visit_pieces(moments, [&](std::size_t n) { meet(nodes_[n].some); });
    visit_ancestors(moments, [&](std::size_t n) { meet(nodes_[n].whole); });
  }
  // Every step up is forced: below it something is in the way. What none of the sets moves is free in all of them.
  std::int64_t at = from;
  for (std::size_t agreed = 0, next = 0; agreed < taken.size(); next = (next + 1) % taken.size()) {
    const std::int64_t past = taken[next]->past_first_in_way(at, bytes);
    agreed = past == at ? agreed + 1 : 0;
    at = past;
  }
  return at;
}

}  // namespace tessera
