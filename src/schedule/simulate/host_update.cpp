#include "schedule/simulate/host_update.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "topology/mesh.hpp"

namespace tessera {
namespace {

constexpr double long_wait = 0.2, worth_saying = 1.05;

double host_wait(const Prediction& p) { return p.step.waited[static_cast<std::size_t>(WaitKind::host)]; }

/// Tries changes, and keeps those that are worth it.
struct UpdateTrial {
  const Deck& deck;
  const MachineProfile& machine;
  const Placement& placement;
  const std::function<MemoryLimits(const Deck&, int)>& limits;
  double now;
  std::vector<Help> help = {};

  bool consider(const std::string& change, const Deck& d, const MachineProfile& m, const Placement& p) {
    const auto choice = choice_as_is(d, m, p, [&](const Deck& of) { return limits(of, p.ranks()); });
    if (!choice || choice->prediction.tokens_per_second < worth_saying * now) return false;
    help.push_back({change, choice->prediction.tokens_per_second});
    return true;
  }

  /// The more tokens, the less of the update each of them pays: four times as many show how much that is.
  void more_tokens() {
    Deck d = deck;
    d.batch.global *= 4;
    consider(fmt::format("batch.global={} (part of a run's identity: another run)", d.batch.global), d, machine, placement);
  }
  void less_of_the_state() {
    Deck d = deck;
    for (const double share : {0.25, 0.5, 0.75}) {
      d.zero.offload_optimizer.ratio = share * deck.zero.offload_optimizer.ratio;
      if (consider(fmt::format("zero.offload_optimizer.ratio={:g}", d.zero.offload_optimizer.ratio), d, machine, placement)) return;
    }
  }
  void more_ranks() {
    if (machine.network.bandwidth == 0 || placement.ranks() % placement.ranks_per_node != 0) return;
    Deck d = deck;
    d.mesh.dp *= 2;
    const int ranks = 2 * placement.ranks();
    if (d.mesh.dp == 0 || deck.batch.global / deck.batch.micro < 2 * deck.mesh.dp) return;
    Placement p = placement;
    p.mesh = make_mesh(d, ranks);
    consider(fmt::format("--ranks {} mesh.dp=auto", ranks), d, machine, p);
  }
  void faster_memory() {
    MachineProfile m = machine;
    m.host.adamw *= 2, m.host.stream *= 2;
    consider("memory of the host that is twice as fast (host.adamw, host.stream)", deck, m, placement);
  }
};

}  // namespace

std::vector<Help> help_with_host_update(const Deck& deck, const Prediction& now, const MachineProfile& machine, const Placement& placement,
                                        const std::function<MemoryLimits(const Deck&, int ranks)>& limits) {
  if (deck.zero.offload_optimizer.device != OffloadDevice::host || host_wait(now) < long_wait * now.step.seconds) return {};
  UpdateTrial trial{.deck = deck, .machine = machine, .placement = placement, .limits = limits, .now = now.tokens_per_second};
  trial.more_tokens(), trial.less_of_the_state(), trial.more_ranks(), trial.faster_memory();
  std::ranges::stable_sort(trial.help, std::greater<>(), &Help::tokens_per_second);
  return trial.help;
}

std::string print_help(const std::vector<Help>& help, const Prediction& now) {
  std::string text;
  for (const Help& h : help)
    text += fmt::format("{:9} {}: {:.0f} tokens/s ({:+.0f} %)\n", "", h.change, h.tokens_per_second,
                        100 * (h.tokens_per_second / now.tokens_per_second - 1));
  if (text.empty()) return text;
  return fmt::format("{:9} compute waits {} of {} for the optimizer on the host; what helps, by the simulator:\n{}", "host",
                     time_text(host_wait(now)), time_text(now.step.seconds), text);
}

}  // namespace tessera
