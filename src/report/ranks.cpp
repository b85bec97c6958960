#include "report/ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include "base/json.hpp"

#include "topology/devices/binding.hpp"

namespace tessera {
namespace {

struct Shared {
  std::string value;
  std::vector<int> ranks;
};
/// A fact, or something that lacks, with the ranks of each of its values.
struct Row {
  Fact fact;  ///< of the first rank that has it
  std::vector<Shared> values;
};

void add(std::vector<Shared>& values, const std::string& value, int rank) {
  const auto same = std::ranges::find(values, value, &Shared::value);
  (same == values.end() ? values.emplace_back(Shared{value, {}}) : *same).ranks.push_back(rank);
}

const Fact* find(const Surroundings& around, const Fact& like) {
  const auto found = std::ranges::find_if(around.facts, [&](const Fact& f) { return f.room == like.room && f.name == like.name; });
  return found == around.facts.end() ? nullptr : &*found;
}

std::vector<Row> rows_of(const RanksAround& around) {
  std::vector<Row> rows;
  for (const Surroundings& rank : around.ranks)
    for (const Fact& fact : rank.facts)
      if (std::ranges::none_of(rows, [&](const Row& r) { return r.fact.room == fact.room && r.fact.name == fact.name; })) {
        // Beside the facts of its room, which another rank may have begun.
        const auto last = std::find_if(rows.rbegin(), rows.rend(), [&](const Row& r) { return r.fact.room == fact.room; });
        rows.insert(last == rows.rend() ? rows.end() : last.base(), Row{fact, {}});
      }
  for (Row& row : rows)
    for (std::size_t rank = 0; rank < around.ranks.size(); ++rank) {
      const auto first = static_cast<std::size_t>(std::ranges::find(around.nodes, around.nodes[rank]) - around.nodes.begin());
      const Fact* fact = find(around.ranks[row.fact.passing ? first : rank], row.fact);
      add(row.values, fact ? fact->value : "none", static_cast<int>(rank));
    }
  return rows;
}

struct SharedLack {
  Lack lack;
  std::vector<int> ranks;
};
std::vector<SharedLack> lacks_of(const RanksAround& around) {
  std::vector<SharedLack> lacks;
  for (std::size_t rank = 0; rank < around.ranks.size(); ++rank)
    for (const Lack& lack : around.ranks[rank].lacking) {
      const auto same = std::ranges::find(lacks, lack, &SharedLack::lack);
      (same == lacks.end() ? lacks.emplace_back(SharedLack{lack, {}}) : *same).ranks.push_back(static_cast<int>(rank));
    }
  return lacks;
}

std::string ranks_text(const std::vector<int>& ranks) { return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", unit_ranges(ranks)); }

}  // namespace

std::string pack(const Surroundings& around) {
  Json out = {{"facts", Json::array()}, {"lacking", Json::array()}};
  for (const Fact& f : around.facts) out["facts"].push_back({f.room, f.name, f.value, f.passing});
  for (const Lack& l : around.lacking) out["lacking"].push_back({l.feature, l.why, l.remedy});
  return out.dump(-1, BadText::replace);
}

Surroundings unpack(const std::string& text) {
  const Json in = Json::parse(text);
  Surroundings around;
  for (const Json& f : in["facts"]) around.facts.push_back({f[0], f[1], f[2], f[3]});
  for (const Json& l : in["lacking"]) around.lacking.push_back({l[0], l[1], l[2]});
  return around;
}

std::string print_ranks(const RanksAround& around) {
  std::string same, differs, same_room, other_room;
  for (const Row& row : rows_of(around)) {
    const bool alike = row.values.size() == 1;
    std::string &text = alike ? same : differs, &room = alike ? same_room : other_room;
    if (row.fact.room != room) text += fmt::format("{}\n", room = row.fact.room);
    if (alike) text += fmt::format("  {:28} {}\n", row.fact.name, row.values.front().value);
    if (alike) continue;
    text += fmt::format("  {}\n", row.fact.name);
    for (const Shared& s : row.values) text += fmt::format("    {:26} {}\n", ranks_text(s.ranks), s.value);
  }
  std::string out = fmt::format("ranks {}\n\nthe same on all ranks\n\n{}\n", around.map, same);
  out += differs.empty() ? "nothing differs between them\n\n" : fmt::format("what differs\n\n{}\n", differs);
  const std::vector<SharedLack> lacks = lacks_of(around);
  out += lacks.empty() ? "nothing is missing\n" : "lacks\n";
  for (const SharedLack& l : lacks)
    out += fmt::format("  {}{}: {}{}\n", l.lack.feature,
                       l.ranks.size() == around.ranks.size() ? "" : fmt::format(" ({})", ranks_text(l.ranks)), l.lack.why,
                       l.lack.remedy.empty() ? "" : "; " + l.lack.remedy);
  return out;
}

std::string ranks_json(const RanksAround& around) {
  Json out = {{"ranks", around.map}, {"same", Json::object()}, {"differs", Json::array()}, {"lacking", Json::array()}};
  for (const Row& row : rows_of(around)) {
    if (row.values.size() == 1) {
      out["same"][row.fact.room][row.fact.name] = row.values.front().value;
      continue;
    }
    Json values = Json::array();
    for (const Shared& s : row.values) values.push_back({{"ranks", s.ranks}, {"value", s.value}});
    out["differs"].push_back({{"room", row.fact.room}, {"name", row.fact.name}, {"values", values}});
  }
  for (const SharedLack& l : lacks_of(around))
    out["lacking"].push_back({{"feature", l.lack.feature}, {"why", l.lack.why}, {"remedy", l.lack.remedy}, {"ranks", l.ranks}});
  return out.dump(2);
}

}  // namespace tessera
