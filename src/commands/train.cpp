// tessera train DECK [key=value ...]
#include <csignal>
#include <memory>

#include "base/check.hpp"
#include "commands/commands.hpp"
#include "deck/deck.hpp"
#include "io/files/path_state.hpp"
#include "optimizer/check_names.hpp"
#include "topology/devices/gpu_environment.hpp"
#include "topology/failure/signals.hpp"
#include "topology/world.hpp"
#include "train/data/training_data.hpp"
#include "train/engine/device.hpp"
#include "train/engine/program_identity.hpp"
#include "train/folder/run_folder.hpp"
#include "train/run/trainer.hpp"

namespace tessera {
namespace {

struct TrainOptions {
  std::string path, resume = {};
  std::vector<std::string> overrides;
};

/// What the start of the world and of GPUs needs of the deck. Its faults are left to the reading that all ranks do together, so that each
/// is printed once.
WorldOptions world_options(const TrainOptions& o) {
  WorldOptions options{.identity = program_identity()};
  try {
    const Deck deck = parse_deck(o.path, o.overrides, 0).deck;
    options.mixed_processors = deck.topology.mixed_processors;
    if (has_gpu_backend() && deck.run.device != RunDevice::host) set_gpu_environment(deck.run.reproducible);
    if (deck.topology.start_timeout > 0) options.start.timeout_seconds = static_cast<double>(deck.topology.start_timeout);
    options.start.run_folder = deck.run.output_dir;
  } catch (const Error&) {
  }
  return options;
}

int run_train(TrainOptions o) {
  if (!o.resume.empty()) o.overrides.push_back("run.resume=" + o.resume);
  watch_stop_signals();           // before MPI starts threads
  std::signal(SIGPIPE, SIG_IGN);  // a run outlives who reads its log
  return run_in_world(world_options(o), [&](World& world) {
    take_stop_signals();
    ParsedDeck parsed;
    world.together([&] {
      leave_if_stopped();
      parsed = parse_deck(o.path, o.overrides, world.ranks(), count_steps);
      check_names(parsed);
      require_deck(parsed);
    });
    choose_device(world, parsed);
    return run_training(world, parsed);
  });
}

}  // namespace

void add_resume(const Command& app) {
  const Command command = app.command("resume", "Resume a run with the deck in its folder; under mpiexec or srun on any number of ranks");
  auto folder = std::make_shared<std::string>();
  auto overrides = std::make_shared<std::vector<std::string>>();
  command.option("RUN", *folder, "The run's folder").required();
  command.option("key=value", *overrides, "Overrides, for example run.steps=2000 or zero.stage=3; applied in order");
  command.footer(
      "Example:\n  mpiexec -n 4 tessera resume runs/quickstart run.steps=500\n\nPaths of the deck are relative to the folder where the run "
      "was started. Exit status: that of tessera train.");
  command.does([folder, overrides] {
    const std::string deck = RunFolder{*folder}.deck();
    if (io::look_at(deck).nothing())
      fail(ExitCode::usage, "{}: it holds no run, because {} is missing. Name the folder that a run wrote (run.output_dir).", *folder,
           deck);
    // Where its kernels worked, how many ranks it had and where the folder lay bind nobody.
    TrainOptions options{.path = deck, .overrides = {"run.device=auto", "mesh.dp=auto", "run.output_dir=" + *folder}};
    options.overrides.insert(options.overrides.end(), overrides->begin(), overrides->end());
    return run_train(std::move(options));
  });
}

void add_train(const Command& app) {
  const Command command = app.command("train", "Train the model of a deck; under mpiexec or srun on many ranks");
  auto options = std::make_shared<TrainOptions>();
  command.option("DECK", options->path, "TOML file").required();
  command.option("key=value", options->overrides, "Overrides, for example zero.stage=2; applied in order");
  command.option("--resume", options->resume,
                 "auto (default: from the run folder's last checkpoint), newest-good (from the newest one that passes verification), "
                 "never, or the path of a checkpoint");
  command.footer(
      "Examples:\n  tessera train inputs/quickstart.toml\n  mpiexec -n 4 tessera train inputs/quickstart.toml zero.stage=2 "
      "run.steps=50\n\nExit status 0: all steps done. 75: stopped by a signal after saving; start the same command again to continue.\n76: "
      "a rank or node was lost; the same command resumes from the last checkpoint.");
  command.does([options] { return run_train(*options); });
}

}  // namespace tessera
