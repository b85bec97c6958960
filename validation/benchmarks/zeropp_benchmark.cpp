// What ZeRO++ saves over a slow link: seconds of a step at stage 3, of two pretended nodes whose link moves so many bytes a second to each
// rank. The link is a decorator of the communicators (slow_link.hpp): a collective does what it does over shared memory, and then sleeps
// until its bytes from the other node could have passed.
//   mpiexec -n 2 zeropp_benchmark [--rate 1e9] [--width 512] [--layers 4] [--tokens 32] [--turns 9] [--json]
// Layouts take turns, a step over the link and one without it, since the speed of shared machines drifts. Seconds are the slowest rank's,
// of the median step. The floor is the bytes that a rank gets from the other node over the rate.
#include <mpi.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>
#include "base/json.hpp"

#include "base/clock.hpp"
#include "memory/runtime.hpp"
#include "slow_link.hpp"
#include "topology/world.hpp"
#include "train/engine/engine.hpp"

namespace tessera {
namespace {

struct Settings {
  double rate = 1e9;
  int width = 512, layers = 4, tokens = 32, turns = 9;
  bool json = false;
};

struct Layout {
  std::string name;
  std::vector<std::string> keys;
};

/// hpZ needs groups of ranks on a node.
std::vector<Layout> layouts_of(int ranks_per_node) {
  const std::string qwz = "zero.quantized_weights=true", qgz = "zero.quantized_gradients=true", errors = "zero.error_feedback.enabled=true",
                    hpz = "zero.hpz_partition_size=" + std::to_string(ranks_per_node);
  if (ranks_per_node == 1)
    return {{"plain", {}}, {"qwZ", {qwz}}, {"qgZ", {qgz}}, {"qwZ + qgZ", {qwz, qgz}}, {"qwZ + qgZ, errors kept", {qwz, qgz, errors}}};
  return {{"plain", {}},
          {"qwZ", {qwz}},
          {"hpZ", {hpz}},
          {"qwZ + hpZ", {qwz, hpz}},
          {"qwZ + hpZ + qgZ", {qwz, hpz, qgz}},
          {"qwZ + hpZ + qgZ, errors kept", {qwz, hpz, qgz, errors}}};
}

Deck deck_of(const Settings& s, const std::vector<std::string>& keys, int ranks) {
  const std::string text = fmt::format(
      "[run]\nsteps = 1000\n[model]\nlayers = {}\nwidth = {}\nheads = {}\nff_width = {}\nvocab = 1024\ntied = false\n"
      "[batch]\nglobal = {}\nmicro = 1\nsequence_length = {}\n[data]\ntrain = \"none.bin\"\n[optimizer]\nlearning_rate = 1e-4\n"
      "[precision]\ncompute = \"bf16\"\n[zero]\nstage = 3\nmax_reuse_distance = 0\n",
      s.layers, s.width, s.width / 64, s.width * 8 / 3 / 64 * 64, ranks, s.tokens);
  return require_deck(parse_deck_text(text, "zeropp_benchmark", keys, ranks));
}

/// A layout at work, and what its steps took.
class Contender {
 public:
  Contender(const World& world, const Settings& settings, const Layout& layout, Node& node, int ranks_per_node) : name(layout.name) {
    const Deck deck = deck_of(settings, layout.keys, world.ranks());
    const Mesh mesh = make_mesh(deck, world.ranks());
    RunPlan plan = plan_run(request_for(deck, mesh, world.rank(), Purpose::training));
    RankLinks links{.node = &node};
    for (const auto& [lane, axes] : wanted_communicators(plan.schedule).groups) {
      const Group group = group_of(mesh, axes, world.rank());
      links.communicators.set(lane, axes,
                              std::make_unique<benchmarks::SlowCommunicator>(
                                  make_communicator(world, group, {.lane = name_of(lane), .node = &node}), group, ranks_per_node, link_));
    }
    engine_ = std::make_unique<Engine>(std::move(plan), EngineOptions{}, std::move(links));
    engine_->initialise_weights();
    for (std::size_t i = 0; i < engine_->tokens(0).size(); ++i)
      engine_->tokens(0)[i] = static_cast<std::int32_t>(i * 7919 % 1024),
      engine_->targets(0)[i] = static_cast<std::int32_t>((i + 1) * 7919 % 1024);
    step();  // makes oneDNN's code
  }

  void turn(double rate) {
    link_.set_rate(rate);
    over_link_.push_back(step());
    link_.set_rate(0);
    without_.push_back(step());
  }
  double over_link() { return median(over_link_); }
  double without() { return median(without_); }

  const std::string name;
  double bytes = 0;  ///< of a step, that this rank gets from the other node

 private:
  double step() {
    link_.take_bytes();
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = now_seconds();
    engine_->step();
    double mine = now_seconds() - begin, slowest = 0;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    bytes = link_.take_bytes();
    return slowest;
  }
  static double median(std::vector<double>& seconds) {
    std::ranges::sort(seconds);
    return seconds[seconds.size() / 2];
  }

  benchmarks::SlowLink link_{0};
  std::unique_ptr<Engine> engine_;
  std::vector<double> over_link_, without_;
};

Settings parse(int argc, char** argv) {
  Settings s;
  for (int i = 1; i < argc; ++i) {
    const std::string key = argv[i];
    if (key == "--json") {
      s.json = true;
      continue;
    }
    if (i + 1 == argc) fail(ExitCode::usage, "{} is unknown or lacks its value: the head of this file lists the options", key);
    const std::string value = argv[++i];
    if (key == "--rate")
      s.rate = std::stod(value);
    else if (key == "--width")
      s.width = std::stoi(value);
    else if (key == "--layers")
      s.layers = std::stoi(value);
    else if (key == "--tokens")
      s.tokens = std::stoi(value);
    else if (key == "--turns")
      s.turns = std::stoi(value);
    else
      fail(ExitCode::usage, "{} is unknown: the head of this file lists the options", key);
  }
  if (s.width < 64 || s.width % 64 != 0 || s.turns < 1 || !(s.rate > 0))
    fail(ExitCode::usage, "--width takes a multiple of 64, --turns and --rate a number above 0");
  return s;
}

int run(World& world, int argc, char** argv) {
  Settings settings;
  world.together([&] {
    settings = parse(argc, argv);
    if (world.ranks() % 2 != 0) fail(ExitCode::usage, "{} ranks are no two nodes: mpiexec -n 2 or 4", world.ranks());
  });
  const int ranks_per_node = world.ranks() / 2;
  KernelRuntime runtime(1);
  Node node(world);
  std::vector<std::unique_ptr<Contender>> all;
  for (const Layout& layout : layouts_of(ranks_per_node))
    all.push_back(std::make_unique<Contender>(world, settings, layout, node, ranks_per_node));
  for (int turn = 0; turn < settings.turns; ++turn)
    for (const auto& contender : all) contender->turn(settings.rate);
  if (world.rank() != 0) return 0;
  Json rows = Json::array();
  const double plain = all.front()->over_link();
  for (const auto& c : all) {
    const double floor = c->bytes / settings.rate, seconds = c->over_link(), without = c->without();
    rows.push_back({{"layout", c->name},
                    {"bytes", c->bytes},
                    {"floor_seconds", floor},
                    {"seconds", seconds},
                    {"of_plain", seconds / plain},
                    {"seconds_without_link", without}});
    if (!settings.json)
      fmt::print(
          "{:<29} {:>6.2f} MB to a rank from the other node, floor {:>5.1f} ms; a step {:>6.1f} ms ({:.2f} of plain), without the "
          "link {:>6.1f} ms\n",
          c->name, c->bytes * 1e-6, floor * 1e3, seconds * 1e3, seconds / plain, without * 1e3);
  }
  if (settings.json) fmt::print("{}\n", Json{{"ranks", world.ranks()}, {"rate", settings.rate}, {"rows", rows}}.dump(1));
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::run_in_world({}, [&](tessera::World& world) { return tessera::run(world, argc, argv); });
}
