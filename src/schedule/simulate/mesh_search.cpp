#include "schedule/simulate/mesh_search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "schedule/plan/run_plan.hpp"

namespace tessera {
namespace {

constexpr std::size_t looked_at_again = 4;        // meshes
constexpr std::int64_t most_micro = 8;            // sequences
constexpr std::int64_t most_micro_batches = 256;  // of a pipeline's stage: the play of all stages takes time with each

Change axis_change(const char* name, std::int64_t MeshKeys::*key, std::int64_t size) {
  return {fmt::format("mesh.{}={}", name, size), [=](Deck& d) { d.mesh.*key = size; }};
}

Change copies_change(std::int64_t ranks) {
  return {fmt::format("zero.hpz_partition_size={}", ranks), [=](Deck& d) { d.zero.hpz_partition_size = ranks; }};
}

Change method_change(ContextMethod method) {
  return {fmt::format("context.method={}", word_of(method)), [=](Deck& d) { d.context.method = method; }};
}

Change order_change(PipelineSchedule order) {
  return {fmt::format("pipeline.schedule={}", word_of(order)), [=](Deck& d) { d.pipeline.schedule = order; }};
}

/// A deck, by what it changes of the one that is asked for.
struct Trial {
  const Deck* asked;
  std::vector<Change> changes;
  Deck deck;

  /// A key that is changed twice has the later value; one that has the asked value is no change.
  void apply(const Change& change) {
    const auto key = [](const Change& c) { return c.text.substr(0, c.text.find('=')); };
    std::erase_if(changes, [&](const Change& c) { return key(c) == key(change); });
    change.apply(deck);
    Deck probe = *asked;
    change.apply(probe);
    if (probe != *asked) changes.push_back(change);
  }
};

class MeshSearch {
 public:
  MeshSearch(const Deck& deck, const MachineProfile& machine, int ranks, int ranks_per_node, bool side_by_side, const LimitsOf& limits)
      : deck_(deck), machine_(machine), ranks_(ranks), per_node_(ranks_per_node), side_by_side_(side_by_side), limits_(limits) {}

  MeshRecommendation run() {
    for (const Trial& mesh : meshes()) look_at(mesh);
    std::ranges::stable_sort(found_.choices, {}, seconds_of);
    for (std::size_t i = 0; i < std::min(looked_at_again, found_.choices.size()); ++i) refine(found_.choices[i]);
    std::ranges::stable_sort(found_.choices, {}, seconds_of);
    return std::move(found_);
  }

 private:
  static double seconds_of(const MeshChoice& c) { return c.choice.prediction.step.seconds; }

  static std::vector<std::int64_t> powers(std::int64_t most) {
    std::vector<std::int64_t> sizes;
    for (std::int64_t n = 1; n <= most; n *= 2) sizes.push_back(n);
    return sizes;
  }

  /// What the rules allow, with the deck's own sizes where they are no powers of two.
  std::vector<Trial> meshes() {
    std::vector<Trial> allowed;
    const auto with_own = [&](std::vector<std::int64_t> sizes, std::int64_t own) {
      if (std::ranges::find(sizes, own) == sizes.end()) sizes.push_back(own);
      return sizes;
    };
    const auto of_node = powers(std::min(per_node_, ranks_));
    for (const std::int64_t tp : with_own(of_node, deck_.mesh.tp))
      for (const std::int64_t cp : with_own(of_node, deck_.mesh.cp))
        for (const std::int64_t ep : with_own(deck_.model.experts > 0 ? of_node : powers(1), deck_.mesh.ep))
          for (const std::int64_t pp : with_own(powers(std::min<std::int64_t>(ranks_, deck_.model.layers)), deck_.mesh.pp)) {
            const bool inside = tp * cp * ep <= per_node_ || (tp == deck_.mesh.tp && cp == deck_.mesh.cp && ep == deck_.mesh.ep);
            if (!inside || ranks_ % (tp * cp * ep * pp) != 0) continue;
            if (auto trial = of_mesh(tp, cp, ep, pp)) allowed.push_back(std::move(*trial));
          }
    found_.meshes = std::ssize(allowed);
    return allowed;
  }

  std::optional<Trial> of_mesh(std::int64_t tp, std::int64_t cp, std::int64_t ep, std::int64_t pp) const {
    Trial trial{.asked = &deck_, .changes = {}, .deck = deck_};
    if (deck_.mesh.dp > 0) trial.apply({"mesh.dp=auto", [](Deck& d) { d.mesh.dp = 0; }});
    trial.apply(axis_change("tp", &MeshKeys::tp, tp));
    trial.apply(axis_change("cp", &MeshKeys::cp, cp));
    trial.apply(axis_change("ep", &MeshKeys::ep, ep));
    trial.apply(axis_change("pp", &MeshKeys::pp, pp));
    // Groups of data-parallel ranks are looked at where the mesh is known.
    trial.apply(axis_change("replicate", &MeshKeys::replicate, 1));
    trial.apply(copies_change(1));
    if (cp == 1) trial.apply(method_change(ContextMethod::ulysses));
    if (!deck_.pipeline.layers.empty() && pp != deck_.mesh.pp)
      trial.apply({"pipeline.layers=[]", [](Deck& d) { d.pipeline.layers.clear(); }});
    if (deck_.activation.recompute == Recompute::automatic || deck_.activation.recompute == Recompute::none)
      trial.apply(recompute_change(deck_.activation, Recompute::selective));
    if (!deck_.activation.keep.empty() && trial.deck.activation.recompute == Recompute::none) return std::nullopt;
    trial.apply(stage_change(1));
    const std::int64_t micros = trial.deck.batch.global / trial.deck.batch.micro, data = ranks_ / (tp * cp * pp);
    if (micros < data) trial.apply(micro_change(1));
    if (trial.deck.batch.global / trial.deck.batch.micro < data) return std::nullopt;  // ranks without work
    if (pp > 1 && trial.deck.batch.global / trial.deck.batch.micro / data > most_micro_batches) return std::nullopt;
    if (is_allowed(trial.deck, ranks_)) return trial;
    if (cp == 1) return std::nullopt;
    // What one method cannot share the other may.
    trial.apply(method_change(deck_.context.method == ContextMethod::ring ? ContextMethod::ulysses : ContextMethod::ring));
    if (!is_allowed(trial.deck, ranks_)) return std::nullopt;
    return trial;
  }

  void look_at(const Trial& mesh) {
    std::optional<MeshChoice> best;
    for (const std::int64_t stage : mesh.deck.mesh.pp > 1 ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{1, 3}) {
      Trial trial = mesh;
      trial.apply(stage_change(stage));
      try_recompute(best, trial);
    }
    if (best) found_.choices.push_back(std::move(*best));
  }

  /// From the least that is made again on: the first that fits is the fastest.
  void try_recompute(std::optional<MeshChoice>& best, const Trial& trial) {
    for (const Recompute mode : {Recompute::none, Recompute::selective, Recompute::full}) {
      Trial now = trial;
      if (mode == Recompute::none && !now.deck.activation.keep.empty())
        now.apply({"activation.keep=[]", [](Deck& d) { d.activation.keep.clear(); }});
      now.apply(recompute_change(deck_.activation, mode));
      if (keep_faster(best, now)) return;
    }
  }

  void refine(MeshChoice& choice) {
    std::optional<MeshChoice> best = choice;
    const Deck& first = choice.choice.deck;
    const Mesh& mesh = choice.mesh;
    for (const std::int64_t stage : {0, 1, 2, 3})
      for (const std::int64_t micro : micro_sizes(first.batch, batch_ranks(mesh)))
        for (const std::optional<PipelineSchedule> order : orders(mesh)) {
          if (micro > most_micro || (stage >= 2 && mesh.size(Axis::pp) > 1)) continue;
          Trial trial{.asked = &deck_, .changes = choice.choice.changes, .deck = first};
          trial.apply(stage_change(stage));
          trial.apply(micro_change(micro));
          if (order) trial.apply(order_change(*order));
          if (is_allowed(trial.deck, ranks_)) try_recompute(best, trial);
        }
    if (mesh.size(Axis::cp) > 1)
      for (const ContextMethod method : {ContextMethod::ulysses, ContextMethod::ring}) try_with(best, {method_change(method)});
    // Where data-parallel ranks are on several nodes, groups of those of a node.
    const std::int64_t of_node = std::max(1, per_node_ / (mesh.size(Axis::tp) * mesh.size(Axis::cp) * mesh.size(Axis::ep)));
    if (const std::int64_t dp = mesh.size(Axis::dp); dp > of_node && dp % of_node == 0) {
      for (const std::int64_t stage : {1, 2, 3})
        try_with(best, {stage_change(stage), axis_change("replicate", &MeshKeys::replicate, dp / of_node)});
      try_with(best, {stage_change(3), copies_change(of_node * mesh.size(Axis::cp) * mesh.size(Axis::ep))});
    }
    choice = std::move(*best);
  }

  void try_with(std::optional<MeshChoice>& best, const std::vector<Change>& changes) {
    Trial trial{.asked = &deck_, .changes = best->choice.changes, .deck = best->choice.deck};
    for (const Change& change : changes) trial.apply(change);
    if (trial.deck != best->choice.deck && is_allowed(trial.deck, ranks_)) try_recompute(best, trial);
  }

  /// Of a pipeline's micro-batches; none of them where there are no stages.
  static std::vector<std::optional<PipelineSchedule>> orders(const Mesh& mesh) {
    using enum PipelineSchedule;
    if (mesh.size(Axis::pp) == 1) return {std::nullopt};
    return {one_forward_one_backward, zero_bubble, interleaved};
  }

  /// False where it does not fit.
  bool keep_faster(std::optional<MeshChoice>& best, const Trial& trial) {
    const Mesh mesh = make_mesh(trial.deck, ranks_);
    const Placement placement{.mesh = mesh, .ranks_per_node = per_node_, .lanes_side_by_side = side_by_side_ || mesh.size(Axis::pp) > 1};
    std::vector<RunPlan> stages;
    TierBytes most{};
    const int each = ranks_ / mesh.size(Axis::pp);
    for (int rank = 0; rank < ranks_; rank += each) {
      stages.push_back(plan_run(request_for(trial.deck, mesh, rank, Purpose::training)));
      const TierBytes& bytes = stages.back().memory.bytes;
      ++found_.planned;
      if (memory_bytes(bytes) > memory_bytes(most)) most = bytes;
      if (!shortfalls(trial.deck, bytes, limits_(trial.deck)).empty()) {
        if (memory_bytes(found_.least) == 0 || memory_bytes(bytes) < memory_bytes(found_.least)) found_.least = bytes;
        return false;
      }
    }
    const RunPlan& first = stages.front();
    ++found_.simulated;
    MeshChoice now{.choice = {.changes = trial.changes,
                              .deck = trial.deck,
                              .bytes = most,
                              .prediction = stages.size() == 1 ? predict(first.request, first.schedule, first.memory, machine_, placement)
                                                               : predict_stage(stages.size() - 1, stages, machine_, placement),
                              .recompute = {}},
                   .mesh = mesh};
    if (!best || seconds_of(now) < seconds_of(*best)) best = std::move(now);
    return true;
  }

  const Deck& deck_;
  const MachineProfile& machine_;
  const int ranks_, per_node_;
  const bool side_by_side_;
  const LimitsOf& limits_;
  MeshRecommendation found_;
};

}  // namespace

MeshRecommendation recommend_meshes(const Deck& deck, const MachineProfile& machine, int ranks, int ranks_per_node, bool side_by_side,
                                    const LimitsOf& limits) {
  return MeshSearch(deck, machine, ranks, ranks_per_node, side_by_side, limits).run();
}

}  // namespace tessera
