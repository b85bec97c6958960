// tessera supervise -n RANKS -- train DECK: starts the ranks of a run, and starts them again where a rank or a node was lost.
#include "supervise/supervisor.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/check.hpp"
#include "base/regular_file.hpp"
#include "commands/commands.hpp"
#include "deck/environment.hpp"
#include "optimizer/check_names.hpp"
#include "topology/failure/signals.hpp"
#include "train/data/training_data.hpp"

namespace tessera {
namespace {

struct SuperviseOptions {
  int ranks = 0, spares = 0;
  bool local = false;
  std::string hosts, hostfile, launcher, json;
  double probe_seconds = SupervisedRun{}.probe_seconds;
  SuperviseRules rules = {};
  std::vector<std::string> command;
};

std::string text_of_file(const std::string& path) {
  std::string text, why;
  constexpr std::int64_t most = 16 << 20;
  if (!read_regular(path, most, text, why)) fail(ExitCode::environment, "cannot read the hosts of {}: {}", path, why);
  return text;
}

/// Newer versions of srun know more options.
bool srun_knows(std::string_view option) {
  static const std::string help = [] {
    std::string text;
    std::FILE* const out = popen("srun --help 2>/dev/null", "r");
    std::array<char, 4096> bytes;
    while (out != nullptr && std::fgets(bytes.data(), bytes.size(), out) != nullptr) text += bytes.data();
    if (out != nullptr) pclose(out);
    return text;
  }();
  return help.find(option) != std::string::npos;
}

WhereToLaunch where_of(const SuperviseOptions& o) {
  WhereToLaunch where{.ranks = o.ranks, .spares = o.spares, .local = o.local, .hosts = o.hosts, .launcher = o.launcher};
  if (!o.hostfile.empty()) where.hostfile = text_of_file(o.hostfile);
  if (environment("SLURM_JOB_ID")) where.slurm_nodes = environment("SLURM_JOB_NODELIST");
  if (const auto path = environment("PBS_NODEFILE")) where.pbs_hostfile = text_of_file(*path);
  where.mpiexec = environment("TESSERA_MPIEXEC").value_or("");
  where.slurm_mpi = environment("SLURM_MPI_TYPE").value_or("");
  where.slurm_cores = environment("SLURM_CPUS_PER_TASK").value_or("");
  where.srun = environment("TESSERA_SRUN").value_or("");
  where.srun_has = srun_knows;
  return where;
}

/// The overrides of `train DECK [KEY=VALUE...] [--resume WHAT]`, where the option stands for one at the end of the line.
std::vector<std::string> overrides_of(const std::vector<std::string>& command) {
  std::vector<std::string> overrides, last;
  for (std::size_t i = 2; i < command.size(); ++i) {
    if (command[i] == "--resume" && i + 1 < command.size())
      last = {"run.resume=" + command[++i]};
    else if (command[i].starts_with("--resume="))
      last = {"run." + command[i].substr(2)};
    else
      overrides.push_back(command[i]);
  }
  overrides.insert(overrides.end(), last.begin(), last.end());
  return overrides;
}

ParsedDeck deck_on(const std::string& path, const std::vector<std::string>& overrides, int ranks) {
  ParsedDeck parsed = parse_deck(path, overrides, ranks, count_steps_if_readable);
  check_names(parsed);
  return parsed;
}

int run_supervise(const SuperviseOptions& o) {
  hold_stop_signals();  // they are passed on
  // 1. What is to run, and where.
  if (o.command.size() < 2 || o.command[0] != "train")
    fail(ExitCode::usage, "supervise starts training runs: write `tessera supervise -n RANKS -- train DECK [KEY=VALUE...]`");
  const std::string& path = o.command[1];
  const std::vector<std::string> overrides = overrides_of(o.command);
  SupervisedRun run{.json = o.json, .probe_seconds = o.probe_seconds, .rules = o.rules, .first = first_launch(where_of(o))};
  if (o.rules.least > o.ranks) fail(ExitCode::usage, "--least {} is more than -n {}", o.rules.least, o.ranks);

  // 2. The deck, whose faults would be those of every start.
  const Deck deck = require_deck(deck_on(path, overrides, o.ranks));
  run.output_dir = deck.run.output_dir;
  run.fits = [&](int ranks) { return deck_on(path, overrides, ranks).faults.empty(); };

  // 3. The ranks' command line. A run that must begin anew does so once.
  std::error_code unknown;
  run.program = {std::filesystem::read_symlink("/proc/self/exe", unknown).string(), "train", path};
  run.program.insert(run.program.end(), overrides.begin(), overrides.end());
  if (deck.run.resume == "never") run.to_go_on = {"run.resume=auto"};
  return supervise(run);
}

}  // namespace

void add_supervise(const Command& app) {
  const Command command =
      app.command("supervise", "Start the ranks of a run, and restart them after a lost rank or node: on spare nodes, or on fewer ranks");
  auto options = std::make_shared<SuperviseOptions>();
  command.option("-n,--ranks", options->ranks, "Ranks of the run").between(1, 1000000).required();
  command.option("--spares", options->spares, "Nodes of the allocation that are reserved to replace lost ones")
      .between(0, 1000000)
      .shows_default();
  command.option("--least", options->rules.least, "Fewest ranks to continue with if no spare node is left")
      .between(1, 1000000)
      .shows_default();
  command.option("--tries", options->rules.tries, "Starts in a row that save no newer step, after which the run is given up (status 79)")
      .between(1, 1000)
      .shows_default();
  command.flag("--local", options->local, "All ranks on this machine, by mpiexec");
  command.option("--hosts", options->hosts, "Nodes, as a,b,c or n[1-4], if no job of Slurm or PBS names them");
  command.option("--hostfile", options->hostfile, "The same, a line a node").excludes("--hosts");
  command.option("--launcher", options->launcher, "Launcher with its options, for example \"mpiexec --oversubscribe\"");
  command.option("--probe-seconds", options->probe_seconds, "Longest time that a node may take to answer")
      .between(0.1, 3600.0)
      .shows_default();
  command.option("--json", options->json, "File for the table of starts, causes and seconds");
  command.option("command", options->command, "After --: train DECK [KEY=VALUE...]").at_least(1);
  command.usage("-n RANKS -- train DECK [KEY=VALUE...]");
  command.footer(
      "Examples:\n  tessera supervise -n 4 --local -- train inputs/quickstart.toml run.steps=50\n  tessera supervise -n 64 --spares 1 "
      "--least 32 -- train inputs/train_70b.toml\n\nExit status: that of the run. 75: stopped by a signal after saving. 76: too few nodes "
      "are left. 78, 79: a restart would fail again.");
  command.does([options] { return run_supervise(*options); });
}

}  // namespace tessera
