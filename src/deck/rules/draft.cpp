#include "deck/rules/draft.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "deck/schema/traits.hpp"

namespace tessera {

bool Draft::good(std::initializer_list<std::string_view> keys) const {
  return std::none_of(keys.begin(), keys.end(), [&](std::string_view k) { return entry(k).faulty; });
}

bool Draft::differs(std::string_view key) const {
  const Entry& e = entry(key);
  if (!e.given || e.faulty) return false;
  const Key& row = *find_key(key);
  return row.required || e.is_auto != is_auto_by_default(row) || value_text(row, deck) != value_text(row, default_deck());
}

void Draft::fault(std::initializer_list<std::string_view> keys, const std::string& message) {
  // An override is the newest change, so it is named before the file; then the first key that was given.
  auto overridden = std::find_if(keys.begin(), keys.end(), [&](auto k) { return entry(k).given && entry(k).place.line == 0; });
  auto given = std::find_if(keys.begin(), keys.end(), [&](auto k) { return entry(k).given; });
  auto at = overridden != keys.end() ? overridden : given != keys.end() ? given : keys.begin();
  const DeckPlace place = entry(*at).given ? entry(*at).place : DeckPlace{file, 0, 0};
  faults.push_back({place.file, place.line, place.column, std::string(*at), message});
}

void Draft::note(std::string_view key, const std::string& value, const std::string& reason) {
  resolved.push_back(fmt::format("{} = {} (auto: {})", key, value, reason));
}

void Draft::idle(std::string_view key, std::string_view choice, const std::string& message) {
  auto overridden = [&](std::string_view k) { return entry(k).given && entry(k).place.line == 0; };
  if (!overridden(choice) || overridden(key)) return fault({key}, message);
  Entry& unused = entries.find(key)->second;
  resolved.push_back(fmt::format("{} = {} of {} is dropped: the override {} = {} leaves it without effect", key, unused.literal.str(),
                                 unused.place.file, choice, entry(choice).literal.str()));
  const Key& row = *find_key(key);
  unused = {}, unused.is_auto = is_auto_by_default(row);
  copy_key(row, default_deck(), deck);
}

void Draft::choose_one(std::string_view key, std::string_view other, std::string_view what) {
  const auto overridden = [&](std::string_view k) { return entry(k).given && entry(k).place.line == 0; };
  const bool first = overridden(key) && !overridden(other);
  idle(first ? other : key, first ? key : other, fmt::format("{} and {} both set {}; leave one of the two out", key, other, what));
}

}  // namespace tessera
