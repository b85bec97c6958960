#include "commands/plan_options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/control_groups.hpp"
#include "base/limits.hpp"
#include "kernels/parallel.hpp"
#include "machine/keys.hpp"
#include "optimizer/check_names.hpp"
#include "schedule/run/make_executor.hpp"
#include "schedule/simulate/costly_keys.hpp"
#include "train/data/training_data.hpp"

namespace tessera {
namespace {

/// As a deck says it.
std::string human_size(std::int64_t bytes) { return fmt::format("\"{} B\"", bytes); }

void limit_power(MachineProfile& machine, const PlanOptions& o) {
  double watts = 0;
  if (const std::string wrong = read_quantity(o.power, MachineValue::watts, watts); !wrong.empty())
    fail(ExitCode::usage, "--power: {}", wrong);
  if (machine.power.rated == 0)
    fail(ExitCode::usage, "--power {} replaces power.limit, but {} has no [power]: add limit, rated and exponent to it", o.power,
         o.machine);
  if (watts > machine.power.rated)
    fail(ExitCode::usage, "--power {} is above the {:g} W at which the rates of {} were given (power.rated)", o.power, machine.power.rated,
         o.machine);
  machine.power.limit = watts;
  machine.name += fmt::format(", {:g} W", watts);
}

}  // namespace

ParsedDeck read_deck(const PlanOptions& o, const std::vector<std::string>& overrides, int ranks) {
  const auto read = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), more.begin(), more.end());
    return o.text.empty() ? parse_deck(o.path, all, ranks, count_steps_if_readable)
                          : parse_deck_text(o.text, o.path, all, ranks, count_steps_if_readable);
  };
  ParsedDeck parsed = without_needless_keys(read({}), read);
  check_names(parsed);
  return parsed;
}

std::optional<MachineProfile> machine_of(const PlanOptions& o) {
  if (o.machine.empty()) return std::nullopt;
  MachineProfile machine = require_machine(o.machine);
  if (o.efficiency > 0) machine.efficiency = {.low = o.efficiency, .likely = o.efficiency, .high = o.efficiency};
  if (!o.power.empty()) limit_power(machine, o);
  if (o.network.empty()) return machine;
  double bandwidth = 0;
  if (const std::string wrong = read_quantity(o.network, MachineValue::traffic, bandwidth); !wrong.empty())
    fail(ExitCode::usage, "--network: {}", wrong);
  if (machine.network.bandwidth == 0)
    fail(ExitCode::usage,
         "--network {} replaces collectives.network.bandwidth, but {} has one node: add [collectives.network] with latency and bandwidth "
         "to it",
         o.network, o.machine);
  machine.network.bandwidth = bandwidth;
  machine.name += fmt::format(", {} into a node", print_quantity(bandwidth, MachineValue::traffic));
  return machine;
}

std::string machine_words(const PlanOptions& o) {
  return fmt::format("--machine {}{}{}{}", o.machine, o.network.empty() ? "" : fmt::format(" --network \"{}\"", o.network),
                     o.power.empty() ? "" : fmt::format(" --power \"{}\"", o.power),
                     o.efficiency > 0 ? fmt::format(" --efficiency {:g}", o.efficiency) : "");
}

int ranks_per_node(const PlanOptions& o, const std::optional<MachineProfile>& machine) {
  if (o.ranks_per_node > 0) return o.ranks_per_node;
  return machine ? static_cast<int>(machine->ranks_per_node) : o.ranks;
}

ParsedDeck parse_for(const PlanOptions& o, const std::optional<MachineProfile>& machine) {
  const int ranks = o.meshes ? 0 : o.ranks;  // the mesh of a deck whose mesh is looked for need not fit so many
  ParsedDeck parsed = read_deck(o, o.overrides, ranks);
  if (!machine || !parsed.faults.empty()) return parsed;
  std::vector<std::string> overrides = o.overrides, said;
  const auto say = [&](const char* key, const std::string& value) {
    overrides.push_back(fmt::format("{}={}", key, value));
    said.push_back(fmt::format("{}: {}, from {}", key, value, o.machine));
  };
  const Deck& deck = parsed.deck;
  if (deck.run.device == RunDevice::automatic) say("run.device", machine->device);
  if (deck.memory.device == 0 && machine->device_memory > 0) say("memory.device", human_size(machine->device_memory));
  const int sharing = std::min(o.ranks, ranks_per_node(o, machine));
  if (deck.memory.host == 0 && machine->host_memory > 0) say("memory.host", human_size(machine->host_memory / sharing));
  parsed = read_deck(o, overrides, ranks);
  parsed.resolved.insert(parsed.resolved.end(), said.begin(), said.end());
  if (parsed.faults.empty() && word_of(parsed.deck.run.device) != machine->device)
    fail(ExitCode::usage,
         "run.device = \"{}\", but ranks of {} compute on \"{}\": leave run.device out, or name a profile of such a machine",
         word_of(parsed.deck.run.device), o.machine, machine->device);
  return parsed;
}

int threads_of(const PlanOptions& o, const Deck& deck, const std::optional<MachineProfile>& machine, int per_node) {
  if (o.threads > 0) return o.threads;
  if (deck.run.threads > 0) return static_cast<int>(deck.run.threads);
  if (machine && machine->threads > 0) return static_cast<int>(std::min<std::int64_t>(machine->threads, most_threads));
  return std::clamp(usable_threads() / per_node, 1, most_threads);
}

std::vector<std::string> costly_lines(const PlanOptions& o) {
  const std::optional<MachineProfile> machine = machine_of(o);
  const Deck deck = require_deck(parse_for(o, machine));
  const int per_node = ranks_per_node(o, machine), threads = threads_of(o, deck, machine, per_node);
  kernels::plan_for_threads(threads);
  const bool side_by_side = deck.run.device == RunDevice::cuda || lane_mode(deck, o.ranks, threads) == LaneMode::threads;
  const Placement placement{.mesh = make_mesh(deck, o.ranks), .ranks_per_node = per_node, .lanes_side_by_side = side_by_side};
  const LimitsOf limits = [&](const Deck& of) { return limits_with(of, o.ranks); };
  std::vector<std::string> lines;
  const auto now = choice_as_is(deck, *machine, placement, limits);
  if (!now) return lines;  // it does not fit, which `tessera plan` explains
  BuildRequest request = request_for(deck, placement.mesh, 0, Purpose::training);
  if (now->recompute) request.recompute = {*now->recompute};
  const StepAdvice advice = advise(request, now->prediction, *machine, placement, limits);
  for (std::size_t i = 0; i < std::min(most_advice, advice.keys.size()); ++i)
    lines.push_back(fmt::format("{}, on {}", text_of(advice.keys[i], now->prediction), machine->name));
  if (advice.together) lines.push_back(fmt::format("together: {}, on {}", text_of(*advice.together, now->prediction), machine->name));
  if (const std::string idle = idle_limit(request); !idle.empty()) lines.push_back(idle);
  return lines;
}

}  // namespace tessera
