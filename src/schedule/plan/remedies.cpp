#include "schedule/plan/remedies.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "schedule/build/micro_batches.hpp"
#include "schedule/plan/changes.hpp"
#include "schedule/plan/recompute_choice.hpp"
#include "schedule/plan/step_cost.hpp"

namespace tessera {
namespace {

/// FLOPs of a rank while a byte travels: 400 TFLOP/s beside 50 GB/s of an NDR link on a GPU, 500 GFLOP/s beside 10 GB/s on a host rank.
double flops_per_byte(const Deck& deck) { return deck.run.device == RunDevice::cuda ? 8000 : 50; }

/// Tasks of all schedules that are built for a search: a model of very many layers is told of fewer changes, and at once.
constexpr std::int64_t most_work = 150'000;

/// One step of an axis: the deck, or the number of ranks, after it.
struct Level : Change {
  int more_ranks = 1;
  bool searched = false;  ///< its plan is a search of plans: tried alone and with one other change
};
/// Levels of one kind of change, weakest first. Of an axis one level is taken, or none.
using Levels = std::vector<Level>;

Levels recompute_axis(const Deck& deck) {
  const ActivationKeys& now = deck.activation;
  if (now.recompute == Recompute::automatic) return {};
  Levels axis{{recompute_change(now, Recompute::automatic), 1, true}};
  if (now.recompute == Recompute::none) axis.push_back({recompute_change(now, Recompute::selective)});
  if (now.recompute != Recompute::full) axis.push_back({recompute_change(now, Recompute::full)});
  for (std::int64_t every = 2; every <= std::min<std::int64_t>(8, deck.model.layers); every *= 2)
    if (now.recompute != Recompute::full || every > now.every) axis.push_back({recompute_change(now, Recompute::full, every)});
  return axis;
}

Levels stage_axis(const Deck& deck, int ranks) {
  Levels axis;
  for (std::int64_t stage = deck.zero.stage + 1; stage <= 3 && ranks > 1; ++stage) axis.push_back({stage_change(stage)});
  return axis;
}

/// Whether a plan lacks a kind of memory.
using Lacks = std::function<bool(MemoryKind)>;

/// What lies with the kernels goes to the host, where that is another memory; and where the host has no room for it, to disks.
Levels offload_axis(const Deck& deck, const Lacks& lacks, bool host_is_limited) {
  const OffloadDevice optimizer = deck.zero.offload_optimizer.device, parameters = deck.zero.offload_param.device;
  using enum OffloadDevice;
  Levels axis;
  const auto add = [&](OffloadDevice to, OffloadDevice parameters_to) {
    std::vector<Change> changes;
    if (to != optimizer) changes.push_back(offload_optimizer_change(to));
    if (parameters_to != parameters) changes.push_back(offload_param_change(parameters_to));
    const std::optional<Change> path = example_path_change(deck);
    if (path && (to == nvme || parameters_to == nvme)) changes.push_back(*path);
    Change all = changes.front();
    for (std::size_t c = 1; c < changes.size(); ++c) all = both(all, changes[c]);
    axis.push_back({all});
  };
  if (lacks(MemoryKind::device)) {
    const OffloadDevice below = optimizer == none ? host : optimizer;
    if (optimizer == none) add(below, parameters);
    if (parameters == none) add(below, host);
  }
  if (lacks(MemoryKind::host) || (lacks(MemoryKind::device) && host_is_limited)) {
    if (optimizer != nvme) add(nvme, parameters);
    if (parameters != nvme) add(nvme, nvme);
  }
  return axis;
}

/// What is copied to and from a GPU need not be pinned.
Levels pin_axis(const Deck& deck, const Lacks& lacks) {
  const ZeroKeys& zero = deck.zero;
  if (!lacks(MemoryKind::pinned)) return {};
  Levels axis;
  const bool parameters = zero.offload_param.device != OffloadDevice::none && zero.offload_param.pin_memory;
  if (parameters) axis.push_back({pageable_param_change()});
  if (zero.offload_optimizer.device != OffloadDevice::none && zero.offload_optimizer.pin_memory) {
    axis.push_back({pageable_optimizer_change()});
    if (parameters) axis.push_back({both(pageable_optimizer_change(), pageable_param_change())});
  }
  return axis;
}

/// The copy of the state that saves are written from.
Levels save_axis(const Deck& deck, const Lacks& lacks) {
  if (!deck.checkpoint.copies_state() || !(lacks(MemoryKind::host) || lacks(MemoryKind::pinned) || kernel_memory(deck) == MemoryKind::host))
    return {};
  return {{waiting_saves_change(deck.checkpoint)}};
}

Levels micro_axis(const Deck& deck) {
  Levels axis;
  for (std::int64_t micro = deck.batch.micro - 1; micro > 0; --micro)
    if (deck.batch.micro % micro == 0 && deck.batch.global % micro == 0) axis.push_back({micro_change(micro)});
  return axis;
}

/// Gathered units that wait for their use, or are kept between two of them.
Levels bucket_axis(const Deck& deck, int ranks) {
  Levels axis;
  if (deck.zero.stage != 3 || ranks == 1) return axis;
  if (deck.zero.prefetch_bucket_size > 0) axis.push_back({prefetch_change(0)});
  if (deck.zero.max_reuse_distance > 0) axis.push_back({both(prefetch_change(0), reuse_change(0))});
  return axis;
}

/// Only where a rank has one micro-batch; with more ranks or larger micro-batches there are no more of them.
Levels gradient_axis(const Deck& deck, int ranks) {
  if (deck.precision.gradients == DType::bf16 || accumulation_steps(deck, ranks) > 1) return {};
  return {{gradients_change(DType::bf16)}};
}

Levels rank_axis(const Deck& deck, int ranks) {
  Levels axis;
  const std::int64_t most = std::min<std::int64_t>(deck.batch.global / deck.batch.micro, 64 * static_cast<std::int64_t>(ranks));
  for (int more = 2; static_cast<std::int64_t>(ranks) * more <= most; more *= 2)
    axis.push_back({{fmt::format("--ranks {}", ranks * more), [](Deck&) {}}, more});
  return axis;
}

/// Of each axis the number of its level plus one, or 0.
using Chosen = std::vector<std::size_t>;

struct RemedyTrial {
  Chosen chosen;
  BuildRequest request;
  TierBytes bytes{};
  double price = 0;
  StepCost cost;
};

class Search {
 public:
  Search(const BuildRequest& request, const MemoryLimits& limits) : request_(request), limits_(limits) {
    const Deck& deck = request.deck;
    const Schedule now = build_schedule(settled(request));
    now_ = step_cost(now);
    const std::vector<Shortfall> lacking = shortfalls(deck, place(now).bytes, limits);
    const Lacks lacks = [&](MemoryKind kind) { return std::ranges::find(lacking, kind, &Shortfall::kind) != lacking.end(); };
    const bool host_is_limited = limits[static_cast<std::size_t>(MemoryKind::host)].has_value();
    for (Levels axis :
         {recompute_axis(deck), bucket_axis(deck, ranks()), gradient_axis(deck, ranks()), pin_axis(deck, lacks), save_axis(deck, lacks),
          stage_axis(deck, ranks()), offload_axis(deck, lacks, host_is_limited), micro_axis(deck), rank_axis(deck, ranks())})
      if (!axis.empty()) axes_.push_back(std::move(axis));
  }

  Remedies run(std::size_t most) {
    // Pairs may cost less than one strong change; three changes at once are asked for only where fewer do not help.
    for (std::size_t size = 1; size <= axes_.size() && (size <= 2 || fitting_.empty()); ++size) try_all(size, 0, Chosen(axes_.size(), 0));
    std::ranges::stable_sort(fitting_, [](const RemedyTrial& a, const RemedyTrial& b) { return a.price < b.price; });
    Remedies remedies{.found = {}, .least = least_, .stopped = worked_ > most_work};
    for (const RemedyTrial* trial : different_ones_first()) {
      if (remedies.found.size() == most) break;
      remedies.found.push_back({.change = words(*trial), .cost = cost_in_words(*trial), .bytes = trial->bytes});
    }
    return remedies;
  }

 private:
  static std::vector<bool> changed_axes(const Chosen& chosen) {
    std::vector<bool> changed;
    for (std::size_t level : chosen) changed.push_back(level > 0);
    return changed;
  }

  /// By price, but what changes the same keys as a cheaper one comes after all that do not.
  std::vector<const RemedyTrial*> different_ones_first() const {
    std::vector<const RemedyTrial*> first, rest;
    for (const RemedyTrial& trial : fitting_) {
      const bool known =
          std::ranges::any_of(first, [&](const RemedyTrial* t) { return changed_axes(t->chosen) == changed_axes(trial.chosen); });
      (known ? rest : first).push_back(&trial);
    }
    first.insert(first.end(), rest.begin(), rest.end());
    return first;
  }

  /// All choices of `size` more axes from `first` on. What contains changes that fit by themselves is left out.
  void try_all(std::size_t size, std::size_t first, Chosen chosen) {
    if (size == 0) {
      const auto contains = [&](const RemedyTrial& t) {
        for (std::size_t a = 0; a < chosen.size(); ++a)
          if (t.chosen[a] > chosen[a]) return false;
        return changed_axes(t.chosen) != changed_axes(chosen);
      };
      if (std::ranges::none_of(fitting_, contains)) plan(chosen);
      return;
    }
    for (std::size_t a = first; a < axes_.size(); ++a)
      for (std::size_t level = 1; level <= axes_[a].size(); ++level) {
        const auto changes = std::ranges::count_if(chosen, [](std::size_t l) { return l > 0; }) + static_cast<std::ptrdiff_t>(size);
        if (axes_[a][level - 1].searched && changes > 2) continue;
        Chosen more = chosen;
        more[a] = level;
        try_all(size - 1, a + 1, more);
      }
  }

  /// With auto, the choice that a run would make, if some level fits in all layers; mixtures alone are not looked for. Else the last level.
  BuildRequest settled(BuildRequest request) const {
    if (request.deck.activation.recompute != Recompute::automatic) return request;
    const RecomputeChoices choices(request);
    const MemoryLimits limits = limits_for(request);
    const auto take = [&](int level) {
      request.recompute.assign(static_cast<std::size_t>(request.stage.count), choices.at({level, level, choices.layers}));
    };
    const int last = static_cast<int>(choices.levels.size()) - 1;
    // What lives through the whole run is the same at all levels: where it has no room, no other need be asked.
    take(last);
    if (!shortfalls(request.deck, kept_bytes(built(request)), limits).empty()) return request;
    for (int level = 0; level <= last; ++level) {
      take(level);
      if (!shortfalls(request.deck, place(built(request)).bytes, limits).empty()) continue;
      settle_own_recompute(request, limits);
      break;
    }
    return request;
  }

  /// Nothing where a deck with the changes would be refused.
  std::optional<BuildRequest> with(const Chosen& chosen) const {
    Deck deck = request_.deck;
    int more_ranks = 1;
    for (std::size_t a = 0; a < chosen.size(); ++a) {
      if (chosen[a] == 0) continue;
      const Level& level = axes_[a][chosen[a] - 1];
      level.apply(deck), more_ranks *= level.more_ranks;
    }
    if (deck.mesh.dp > 0) deck.mesh.dp *= more_ranks;
    if (!is_allowed(deck, ranks() * more_ranks)) return std::nullopt;
    const Mesh mesh = make_mesh(deck, ranks() * more_ranks);
    const int first_of_stage = mesh.ranks() / request_.stage.count * request_.stage.number;
    BuildRequest request = request_for(deck, mesh, first_of_stage, request_.purpose);
    if (request_.evaluation_micro_batches == 0) request.evaluation_micro_batches = 0;
    return settled(std::move(request));
  }

  void plan(const Chosen& chosen) {
    if (worked_ > most_work) return;
    std::optional<BuildRequest> changed = with(chosen);
    if (!changed) return;
    RemedyTrial trial{.chosen = chosen, .request = std::move(*changed), .cost = {}};
    const BuildRequest& request = trial.request;
    const Schedule schedule = built(request);
    const MemoryLimits limits = limits_for(request);
    const auto is_less = [&](const TierBytes& bytes) { return memory_bytes(least_) == 0 || memory_bytes(bytes) < memory_bytes(least_); };
    // Where no place of the others can make it fit, it need not be found.
    const TierBytes kept = kept_bytes(schedule);
    if (!shortfalls(request.deck, kept, limits).empty() && !is_less(kept)) return;
    trial.bytes = place(schedule).bytes, trial.cost = step_cost(schedule);
    if (is_less(trial.bytes)) least_ = trial.bytes;
    if (!shortfalls(request.deck, trial.bytes, limits).empty()) return;
    const bool more_ranks = request.mesh.ranks() > ranks();
    // Another number of ranks is another machine: dearer than all that this one can do.
    trial.price = (more_ranks ? 1e30 * request.mesh.ranks() : 0) + trial.cost.flops - now_.flops +
                  flops_per_byte(request.deck) * (trial.cost.bytes_moved - now_.bytes_moved);
    fitting_.push_back(std::move(trial));
  }

  Schedule built(const BuildRequest& request) const {
    Schedule schedule = build_schedule(request);
    for (const Section& section : schedule.sections) worked_ += std::ssize(section.tasks);
    return schedule;
  }

  /// A rank that was alone has no communicators yet.
  MemoryLimits limits_for(const BuildRequest& request) const {
    MemoryLimits limits = limits_;
    auto& gpu = limits[static_cast<std::size_t>(MemoryKind::device)];
    if (gpu && ranks() == 1) gpu->bytes -= GpuReserve{}.nccl(communication_of(request.deck, request.mesh.ranks()));
    return limits;
  }

  int ranks() const { return request_.mesh.ranks(); }

  std::string words(const RemedyTrial& trial) const {
    std::vector<std::string> changes;
    for (std::size_t a = 0; a < axes_.size(); ++a)
      if (trial.chosen[a] > 0) changes.push_back(axes_[a][trial.chosen[a] - 1].text);
    return fmt::format("{}", fmt::join(changes, " "));
  }

  std::string cost_in_words(const RemedyTrial& trial) const {
    const BuildRequest& request = trial.request;
    std::vector<std::string> words;
    if (request.mesh.ranks() > ranks())
      words.push_back(fmt::format("{} times the {}", request.mesh.ranks() / ranks(),
                                  request.deck.run.device == RunDevice::cuda ? "GPUs" : "ranks, each with as much memory"));
    else if (trial.cost.flops > now_.flops)
      words.push_back(fmt::format("{:.1f} % more FLOPs a step", 100 * (trial.cost.flops / now_.flops - 1)));
    if (request.mesh.ranks() == ranks() && trial.cost.bytes_moved > now_.bytes_moved)
      words.push_back(fmt::format("{} more moved by each rank a step ({} instead of {})",
                                  human_bytes(trial.cost.bytes_moved - now_.bytes_moved), human_bytes(trial.cost.bytes_moved),
                                  human_bytes(now_.bytes_moved)));
    if (const RecomputeChoice* chosen = request.choice()) words.push_back("recomputes " + describe(*chosen, request.stage));
    if (request.deck.precision.gradients != request_.deck.precision.gradients)
      words.push_back("other numbers: gradients are rounded to bf16 before they are summed");
    if (request.deck.batch.micro != request_.deck.batch.micro)
      words.push_back("smaller products, and another run: batch.micro is part of its identity");
    const auto& folder = request.deck.zero.offload_optimizer.nvme_path;
    if (folder != request_.deck.zero.offload_optimizer.nvme_path)
      words.push_back(fmt::format("{} of local disks for each rank, in a folder of which {} is an example",
                                  human_bytes(static_cast<double>(bytes_of(trial.bytes, MemoryKind::nvme))), folder));
    if (request.deck.zero.offload_optimizer.pin_memory != request_.deck.zero.offload_optimizer.pin_memory ||
        request.deck.zero.offload_param.pin_memory != request_.deck.zero.offload_param.pin_memory)
      words.push_back("copies to and from the GPU that do not overlap with kernels");
    if (request.deck.checkpoint.async != request_.deck.checkpoint.async) words.push_back("steps wait for saves");
    if (request.deck.checkpoint.neighbour_every != request_.deck.checkpoint.neighbour_every)
      words.push_back("a lost rank or node costs the steps since the last save");
    if (request.deck.zero.prefetch_bucket_size != request_.deck.zero.prefetch_bucket_size)
      words.push_back("units are gathered when they are needed, not prefetched");
    return words.empty() ? "no more FLOPs and no more bytes moved" : fmt::format("{}", fmt::join(words, "; "));
  }

  const BuildRequest& request_;
  const MemoryLimits& limits_;
  StepCost now_ = {};
  mutable std::int64_t worked_ = 0;  ///< tasks of the schedules that were built
  std::vector<Levels> axes_;
  std::vector<RemedyTrial> fitting_;
  TierBytes least_{};
};

}  // namespace

Remedies find_remedies(const BuildRequest& request, const MemoryLimits& limits, std::size_t most) {
  return Search(request, limits).run(most);
}

std::string print_remedies(const Remedies& remedies, const Deck& deck) {
  if (remedies.found.empty() && remedies.stopped)
    return fmt::format(
        "For a model of so many layers only some changes were tried, and none of those fits; the least that any of them needs is {} on "
        "each rank. `--recommend` tries more of them, with more --ranks.",
        human_bytes(static_cast<double>(memory_bytes(remedies.least))));
  if (remedies.found.empty())
    return fmt::format(
        "No change of activation.recompute (now {}), zero.stage (now {}), batch.micro (now {}), offload, buckets or ranks makes it fit; "
        "the least that any of them needs is {} on each rank. A smaller batch.sequence_length or model needs less.",
        word_of(deck.activation.recompute), deck.zero.stage, deck.batch.micro,
        human_bytes(static_cast<double>(memory_bytes(remedies.least))));
  std::string text = "Each of these makes it fit, the cheapest first:";
  for (const Remedy& remedy : remedies.found)
    text += fmt::format("\n  {}: {} on each rank{}; {}", remedy.change,
                        human_bytes(static_cast<double>(bytes_of(remedy.bytes, kernel_memory(deck)))),
                        deck.run.device == RunDevice::cuda ? "'s GPU" : "", remedy.cost);
  return text;
}

}  // namespace tessera
