#include "topology/failure/account.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace tessera {
namespace {

constexpr std::size_t shown_ranks = 16;

std::string sentence(const RankNote& rank) {
  if (rank.ended) return "has ended";
  if (rank.behind >= 0)
    return fmt::format("reports only by way of rank {}. Last report {:.0f} s ago: {}", rank.behind, rank.age, rank.note.describe());
  if (rank.answered) return rank.note.describe();
  return fmt::format("does not answer: it is stopped, or its node hangs. Last report {:.0f} s ago: {}", rank.age, rank.note.describe());
}

}  // namespace

std::string print_notes(std::span<const RankNote> notes) {
  std::string text;
  for (const RankNote& rank : notes)
    text += fmt::format("rank\t{} {} {} {:.1f} {}\n{}", rank.rank, rank.answered ? 1 : 0, rank.ended ? 1 : 0, rank.age, rank.behind,
                        rank.note.print());
  return text;
}

std::vector<RankNote> parse_notes(std::string_view text) {
  std::vector<RankNote> notes;
  std::vector<std::string> texts;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("rank\t")) {
      RankNote& rank = notes.emplace_back();
      std::istringstream(line.substr(5)) >> rank.rank >> rank.answered >> rank.ended >> rank.age >> rank.behind;
      texts.emplace_back();
    } else if (!texts.empty()) {
      texts.back() += line + "\n";
    }
  }
  for (std::size_t i = 0; i < notes.size(); ++i) notes[i].note = Note::parse(texts[i]);
  return notes;
}

std::string name_ranks(std::span<const int> ranks, std::span<const std::string> hosts) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const auto host = [&](int rank) { return hosts[static_cast<std::size_t>(rank)]; };
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1 && host(ranks[last + 1]) == host(ranks[i])) ++last;
    if (i > 0) text += ", ";
    text += last == i ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[last]);
    if (last + 1 == ranks.size() || host(ranks[last + 1]) != host(ranks[i])) text += " on " + host(ranks[i]);
    i = last + 1;
  }
  return text;
}

std::string explain_wait(std::span<const RankNote> notes, std::span<const std::string> hosts, const std::string& wait) {
  std::vector<int> waiting;
  std::vector<const RankNote*> others;
  for (const RankNote& rank : notes)
    if (rank.answered && rank.note.waits.contains(wait))
      waiting.push_back(rank.rank);
    else
      others.push_back(&rank);
  // Who waits elsewhere waits for one of those that wait nowhere.
  std::ranges::stable_partition(others,
                                [](const RankNote* rank) { return rank->behind < 0 && (!rank->answered || rank->note.waits.empty()); });
  std::string missing;
  for (std::size_t i = 0; i < others.size() && i < shown_ranks; ++i)
    missing += fmt::format("\n  rank {} on {} {}", others[i]->rank, hosts[static_cast<std::size_t>(others[i]->rank)], sentence(*others[i]));
  if (others.size() > shown_ranks) missing += fmt::format("\n  and {} more ranks", others.size() - shown_ranks);
  const std::string who = waiting.empty() ? "no other rank waits there"
                                          : fmt::format("{} wait{} there", name_ranks(waiting, hosts), waiting.size() == 1 ? "s" : "");
  if (others.empty()) return fmt::format("{}, so MPI or the network between them hangs", who);
  return fmt::format("{}, for:{}", who, missing);
}

}  // namespace tessera
