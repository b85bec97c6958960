// tessera plan DECK --recommend --meshes and --sweep_meshes --meshes: over which axes to lay a deck on a machine.
#include <fmt/format.h>

#include "base/json.hpp"

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/log.hpp"
#include "commands/plan_options.hpp"
#include "kernels/parallel.hpp"
#include "schedule/run/make_executor.hpp"
#include "schedule/simulate/mesh_search.hpp"

namespace tessera {
namespace {

constexpr std::size_t shown = 6;  // meshes

/// A search for one number of ranks.
struct SearchedMeshes {
  Deck deck;
  MeshRecommendation found;
  std::optional<double> slowdown = {};  ///< of the first, where it has no stages of a pipeline
};

SearchedMeshes search(PlanOptions o, const MachineProfile& machine, int ranks) {
  o.ranks = ranks;
  const Deck deck = require_deck(parse_for(o, machine));
  const int per_node = ranks_per_node(o, machine), threads = threads_of(o, deck, machine, per_node);
  kernels::plan_for_threads(threads);
  const bool side_by_side = deck.run.device == RunDevice::cuda || lane_mode(deck, ranks, threads) == LaneMode::threads;
  const LimitsOf limits = [ranks](const Deck& d) { return limits_with(d, ranks); };
  SearchedMeshes s{.deck = deck, .found = recommend_meshes(deck, machine, ranks, per_node, side_by_side, limits)};
  if (s.found.choices.empty()) return s;
  const MeshChoice& first = s.found.choices.front();
  if (first.mesh.size(Axis::pp) == 1)
    s.slowdown =
        slowdown(first.choice, machine, {.mesh = first.mesh, .ranks_per_node = per_node, .lanes_side_by_side = side_by_side}, limits);
  return s;
}

std::string mesh_text(const Mesh& mesh) {
  std::string text;
  for (const Axis axis : all_axes)
    if (mesh.size(axis) > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name_of(axis), mesh.size(axis));
  return text.empty() ? "one rank" : text;
}

std::string memory_text(const MeshChoice& c) { return memory_text(c.choice.bytes, limits_with(c.choice.deck, c.choice.prediction.ranks)); }

Json choice_json(const MeshChoice& c) {
  Json changes = Json::array(), mesh, bytes;
  for (const Change& change : c.choice.changes) changes.push_back(change.text);
  for (const Axis axis : all_axes) mesh[std::string(name_of(axis))] = c.mesh.size(axis);
  for (const MemoryKind kind : all_memory_kinds) bytes[name_of(kind)] = bytes_of(c.choice.bytes, kind);
  return {{"mesh", mesh}, {"changes", changes}, {"most_bytes_per_rank", bytes}, {"prediction", prediction_json(c.choice.prediction)}};
}

Json found_json(const SearchedMeshes& s, int ranks) {
  Json out = {{"ranks", ranks}, {"meshes", s.found.meshes}, {"planned", s.found.planned}, {"simulated", s.found.simulated}};
  for (const MeshChoice& c : s.found.choices) out["choices"].push_back(choice_json(c));
  if (s.found.choices.empty()) out["choices"] = Json::array();
  if (s.slowdown) out["slowdown"] = *s.slowdown;
  return out;
}

std::string least_text(const SearchedMeshes& s, int ranks) {
  if (s.found.meshes == 0) return fmt::format("the deck's rules allow no mesh of {} ranks that gives each rank work", ranks);
  return fmt::format("none of {} meshes fits; the smallest plan needs {}", s.found.meshes,
                     memory_text(s.found.least, limits_with(s.deck, ranks)));
}

void print_found(const SearchedMeshes& s, const PlanOptions& o, const MachineProfile& machine) {
  const MeshChoice& first = s.found.choices.front();
  const Prediction& p = first.choice.prediction;
  put("machine   {} ({}): {} rank{} on {}\n", machine.name, o.machine, p.ranks, p.ranks == 1 ? "" : "s",
      p.nodes == 1 ? "a node" : fmt::format("{} nodes", p.nodes));
  put("searched  {} meshes: {} ranks planned, {} steps simulated\n", s.found.meshes, s.found.planned, s.found.simulated);
  put("choose    {}: {}\n", mesh_text(first.mesh), words_of(first.choice.changes));
  if (first.choice.deck.batch.micro != s.deck.batch.micro)
    put("note      batch.micro is part of a run's identity: another run, no resume\n");
  put("memory    {}, of the fullest\n", memory_text(first));
  put("predicted{}\n", print_prediction(p, 5));
  if (s.slowdown) put("{}\n", slowdown_line(*s.slowdown));
  put("cost      {}\n", run_cost_text(o, machine, p.ranks, p.tokens_per_second));
  for (std::size_t i = 1; i < std::min(shown, s.found.choices.size()); ++i) {
    const MeshChoice& c = s.found.choices[i];
    put("{} {}: {:.0f} tokens/s ({:+.1f} %), {}\n", i == 1 ? "instead of" : "          ", mesh_text(c.mesh),
        c.choice.prediction.tokens_per_second, 100 * (c.choice.prediction.tokens_per_second / p.tokens_per_second - 1),
        words_of(c.choice.changes));
  }
}

int recommend_mesh(const PlanOptions& o, const MachineProfile& machine) {
  const SearchedMeshes s = search(o, machine, o.ranks);
  if (s.found.choices.empty())
    fail(ExitCode::memory, "{}. More ranks, a smaller batch.sequence_length or offloading needs less memory.", least_text(s, o.ranks));
  const MeshChoice& first = s.found.choices.front();
  const Prediction& p = first.choice.prediction;
  if (!o.write.empty())
    write_recommended(o, first.choice.changes,
                      fmt::format("{:.0f} tokens/s are predicted, a step of {}, MFU {:.1f} %; memory: {}", p.tokens_per_second,
                                  time_text(p.step.seconds), 100 * p.mfu_full, memory_text(first)),
                      p.ranks, machine.name);
  if (o.json) {
    Json out = {{"deck", o.path}, {"machine", machine.name}, {"profile", o.machine}};
    out.update(found_json(s, o.ranks));
    if (!o.write.empty()) out["written"] = o.write;
    put("{}\n", out.dump(2, BadText::replace));
  } else {
    print_found(s, o, machine);
    if (!o.write.empty()) put("written   {}\n", o.write);
  }
  return 0;
}

int sweep_meshes(const PlanOptions& o, const MachineProfile& machine) {
  Json rows = Json::array();
  bool any = false;
  if (!o.json) put("{:>6} {:>6} {:>12} {:>9} {:>7}  choice\n", "ranks", "nodes", "tokens/s", "a rank", "MFU");
  for (const int ranks : o.sweep) {
    const SearchedMeshes s = search(o, machine, ranks);
    any |= !s.found.choices.empty();
    if (o.json) {
      rows.push_back(found_json(s, ranks));
      if (!o.tokens.empty() && !s.found.choices.empty()) {
        const Prediction& p = s.found.choices.front().choice.prediction;
        rows.back()["run"] = run_json(o, machine, p.ranks, p.tokens_per_second);
      }
      continue;
    }
    if (s.found.choices.empty()) {
      put("{:>6} {}\n", ranks, least_text(s, ranks));
      continue;
    }
    const MeshChoice& first = s.found.choices.front();
    const Prediction& p = first.choice.prediction;
    put("{:>6} {:>6} {:>12.0f} {:>9.0f} {:>5.1f} %  {}: {}", ranks, p.nodes, p.tokens_per_second, p.tokens_per_second / ranks,
        100 * p.mfu_full, mesh_text(first.mesh), words_of(first.choice.changes));
    if (s.found.choices.size() > 1) {
      const MeshChoice& second = s.found.choices[1];
      put("; {:+.1f} % with {}", 100 * (second.choice.prediction.tokens_per_second / p.tokens_per_second - 1), mesh_text(second.mesh));
    }
    if (!o.tokens.empty() || price_of(o, machine) > 0) put("; {}", run_cost_text(o, machine, p.ranks, p.tokens_per_second));
    put("\n");
  }
  if (o.json) put("{}\n", Json({{"deck", o.path}, {"machine", machine.name}, {"sweep", rows}}).dump(2, BadText::replace));
  return any ? 0 : static_cast<int>(ExitCode::memory);
}

}  // namespace

int recommend_meshes(const PlanOptions& options) {
  const MachineProfile machine = *machine_of(options);
  return options.recommend ? recommend_mesh(options, machine) : sweep_meshes(options, machine);
}

}  // namespace tessera
