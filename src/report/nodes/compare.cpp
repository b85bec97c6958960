#include "report/nodes/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/some_of.hpp"

namespace tessera {
namespace {

constexpr double nearly = 0.02;  ///< of a size: firmware and kernels of nodes that are alike reserve a little more or less

struct SharedValue {
  NodeFact fact;
  std::vector<std::string> nodes;
};

bool same(const NodeFact& a, const NodeFact& b) {
  if (a.amount > 0 && b.amount > 0) return std::abs(a.amount - b.amount) <= nearly * std::max(a.amount, b.amount);
  return a.value == b.value;
}

const NodeFact* find(const NodeAround& node, const NodeFact& like) {
  const auto found = std::ranges::find_if(node.facts, [&](const NodeFact& f) { return f.thing == like.thing && f.name == like.name; });
  return found == node.facts.end() ? nullptr : &*found;
}

bool has(const NodeAround& node, const std::string& thing) {
  return thing.empty() || std::ranges::find(node.facts, thing, &NodeFact::thing) != node.facts.end();
}

void add_differences(const std::vector<SharedValue>& choices, std::vector<NodeDifference>& differences) {
  if (choices.size() < 2) return;
  const auto most = std::ranges::max_element(choices, {}, [](const SharedValue& c) { return c.nodes.size(); });  // of several the first
  for (const SharedValue& choice : choices)
    if (&choice != &*most) differences.push_back({choice.fact, choice.nodes, most->fact.value, most->nodes});
}

/// The nodes by what `fact_of` says of them.
template <class FactOf>
std::vector<SharedValue> choices_of(const std::vector<NodeAround>& nodes, const FactOf& fact_of) {
  std::vector<SharedValue> choices;
  for (const NodeAround& node : nodes) {
    const NodeFact fact = fact_of(node);
    const auto like = std::ranges::find_if(choices, [&](const SharedValue& c) { return same(c.fact, fact); });
    (like == choices.end() ? choices.emplace_back(SharedValue{fact, {}}) : *like).nodes.push_back(node.name);
  }
  return choices;
}

std::string named(const std::vector<std::string>& nodes) {
  return nodes.size() == 1 ? nodes.front() : fmt::format("{} nodes", nodes.size());
}

}  // namespace

std::vector<NodeDifference> compare_nodes(const std::vector<NodeAround>& nodes) {
  std::vector<NodeFact> rows;  // each once, those of a thing together
  for (const NodeAround& node : nodes)
    for (const NodeFact& fact : node.facts) {
      if (std::ranges::any_of(rows, [&](const NodeFact& r) { return r.thing == fact.thing && r.name == fact.name; })) continue;
      const auto last = std::find_if(rows.rbegin(), rows.rend(), [&](const NodeFact& r) { return r.thing == fact.thing; });
      rows.insert(last == rows.rend() ? rows.end() : last.base(), fact);
    }
  std::vector<NodeDifference> differences;
  const std::string* thing = nullptr;
  for (const NodeFact& row : rows) {
    if (!thing || *thing != row.thing)
      add_differences(choices_of(nodes,
                                 [&](const NodeAround& n) {
                                   return NodeFact{row.thing, "", has(n, row.thing) ? "there" : ""};
                                 }),
                      differences);
    thing = &row.thing;
    std::vector<NodeAround> with;  // those without it have been named
    std::ranges::copy_if(nodes, std::back_inserter(with), [&](const NodeAround& n) { return has(n, row.thing); });
    add_differences(choices_of(with,
                               [&](const NodeAround& n) {
                                 const NodeFact* fact = find(n, row);
                                 return fact ? *fact : NodeFact{row.thing, row.name, ""};
                               }),
                    differences);
  }
  return differences;
}

std::string sentence(const NodeDifference& d) {
  const std::string who = some_of(d.nodes), others = named(d.others);
  const auto said = [](const std::string& value) { return value.empty() ? std::string("none") : value; };
  const bool one = d.others.size() == 1;
  if (d.fact.name.empty())
    return d.fact.value.empty() ? fmt::format("{}: {} is missing, {} {} it", who, d.fact.thing, others, one ? "has" : "have")
                                : fmt::format("{}: {} is present, {} {} it", who, d.fact.thing, others, one ? "lacks" : "lack");
  if (d.fact.name == "speed" && !d.fact.value.empty() && !d.usual.empty())
    return fmt::format("{}: {} runs at {}, {} at {}", who, d.fact.thing, d.fact.value, others, d.usual);
  return fmt::format("{}: {}{}{} is {}, on {} {}", who, d.fact.thing, d.fact.thing.empty() ? "" : ", ", d.fact.name, said(d.fact.value),
                     others, said(d.usual));
}

Json differences_json(const std::vector<NodeDifference>& differences) {
  Json out = Json::array();
  for (const NodeDifference& d : differences)
    out.push_back({{"says", sentence(d)},
                   {"thing", d.fact.thing},
                   {"name", d.fact.name},
                   {"value", d.fact.value},
                   {"nodes", d.nodes},
                   {"usual", d.usual},
                   {"others", d.others.size()}});
  return out;
}

}  // namespace tessera
