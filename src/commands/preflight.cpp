// tessera preflight [DECK] [key=value ...]: who of the ranks is slower than the others, before a run waits for him.
#include <memory>

#include "base/log.hpp"
#include "commands/commands.hpp"
#include "deck/deck.hpp"
#include "report/preflight/preflight.hpp"
#include "topology/devices/gpu_environment.hpp"
#include "topology/world.hpp"
#include "train/engine/program_identity.hpp"

namespace tessera {
namespace {

struct PreflightCommand {
  std::string deck, device = "auto";
  std::vector<std::string> overrides, folders;
  double seconds = PreflightOptions{}.seconds;
  bool json = false;
};

/// Of a deck what a run of it would take.
PreflightOptions options_of(const PreflightCommand& c) {
  PreflightOptions options{.seconds = c.seconds, .folders = c.folders};
  if (!c.deck.empty()) {
    const Deck deck = require_deck(parse_deck(c.deck, c.overrides, 0));
    options.keys = deck.preflight;
    options.device = deck.run.device;
    options.threads = static_cast<int>(deck.run.threads);
    options.share_gpu = deck.topology.share_gpu;
    for (const std::string& folder : folders_of(deck)) options.folders.push_back(folder);
  }
  if (c.device != "auto") options.device = from_word<RunDevice>(c.device).value();
  if (options.folders.empty()) options.folders = {"."};
  return options;
}

int preflight(const PreflightCommand& c) {
  set_gpu_environment(false);
  return run_in_world({.collective_timeout_seconds = 60 + 2 * c.seconds, .identity = program_identity()}, [&](World& world) {
    PreflightOptions options;
    world.together([&] { options = options_of(c); });
    const PreflightVerdict verdict = run_preflight(world, options);
    if (world.rank() != 0) return 0;
    put("{}", c.json ? verdict_json(verdict) + "\n" : print_verdict(verdict));
    if (const std::string first = headline(verdict); !first.empty()) log_line(LogLevel::error, "preflight: " + first);
    return status_of(verdict);
  });
}

}  // namespace

void add_preflight(const Command& app) {
  const Command command =
      app.command("preflight",
                  "Measure products, copies, exchanges and disks of each rank for some seconds before a run, under mpiexec or srun of all "
                  "its ranks. It names slow ranks first, then faults of nodes and differences between nodes");
  auto options = std::make_shared<PreflightCommand>();
  command.option("DECK", options->deck,
                 "TOML file: its [preflight] has the limits, and the folders that its run would write to are tested");
  command.option("key=value", options->overrides, "Overrides of the deck, for example preflight.slower=0.05");
  command.option("--folder", options->folders, "Another folder to write to and read from; without any, and without a deck, the current one")
      .one_word();
  command.option("--seconds", options->seconds, "Seconds of measuring").between(0.1, 3600.0).shows_default();
  command.option("--device", options->device, "Device to measure; auto: the deck's, or a GPU if there is one")
      .one_of({enum_words<RunDevice>.begin(), enum_words<RunDevice>.end()})
      .shows_default();
  command.flag("--json", options->json, "Print one JSON object");
  command.footer(
      "Examples:\n  mpiexec -n 2 tessera preflight\n  srun -n 64 tessera preflight inputs/quickstart.toml\n  tessera preflight --folder "
      "/tmp --seconds 2 --json\n\nExit status 0: no fault. 6: a rank is slower than the deck allows, or a node has a fault. 7: a folder "
      "cannot be used.");
  command.does([options] { return preflight(*options); });
}

}  // namespace tessera
