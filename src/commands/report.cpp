// tessera report: what there is on this node, and with --measure how fast it is.
#include <memory>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/version.hpp"
#include "commands/commands.hpp"
#include "report/measure.hpp"
#include "report/nodes/compare.hpp"
#include "report/nodes/look.hpp"
#include "report/ranks.hpp"
#include "report/surroundings.hpp"
#include "topology/devices/binding.hpp"
#include "topology/devices/gpu_environment.hpp"
#include "topology/world.hpp"
#include "train/engine/program_identity.hpp"

namespace tessera {
namespace {

struct ReportOptions {
  bool json = false, measure = false;
  std::string device = "auto";
  MeasureOptions how;
};

int measure(const ReportOptions& o) {
  set_gpu_environment(false);
  return run_in_world({.identity = program_identity()}, [&](World& world) {
    world.require_same_program();
    const double begin = now_seconds();
    const auto progress = [&](const std::string& what) {
      if (world.rank() == 0) info("measuring {} ({:.0f} s)", what, now_seconds() - begin);
    };
    const MachineProfile profile = measure_machine(world, o.how, progress);
    if (world.rank() == 0) {
      put("# Measured by `tessera report --measure` of tessera {}, ranks {}; for `tessera plan --machine`.\n{}", version(),
          world.map_of_ranks(), print_machine(profile));
      info("measured in {:.0f} s", now_seconds() - begin);
    }
    return 0;
  });
}

/// Ranks whose programs differ are not refused: that is told as all that differs is.
int report_of_ranks(const ReportOptions& o) {
  return run_in_world({}, [&](World& world) {
    Surroundings mine;
    world.together([&] { mine = look_around(o.how.disks); });
    mine.facts.push_back({"node", "threads", describe(bind_process(world, false))});
    RanksAround around{.map = world.map_of_ranks()};
    for (const std::string& text : world.gather_text(pack(mine))) around.ranks.push_back(unpack(text));
    for (const std::string& node : world.gather_text(std::to_string(world.place().node))) around.nodes.push_back(std::stoi(node));
    const std::vector<NodeDifference> differences = compare_nodes(look_at_nodes(world));
    if (world.rank() != 0) return 0;
    if (o.json) {
      Json out = Json::parse(ranks_json(around));
      out["nodes"] = differences_json(differences);
      put("{}\n", out.dump(2));
      return 0;
    }
    put("{}", print_ranks(around));
    if (!differences.empty()) put("nodes that differ\n");
    for (const NodeDifference& d : differences) put("  {}\n", sentence(d));
    return 0;
  });
}

int report(const ReportOptions& o) {
  set_gpu_environment(true);  // as a reproducible run would
  if (launched_as_several()) return report_of_ranks(o);
  const Surroundings around = look_around(o.how.disks);
  put("{}", o.json ? surroundings_json(around) + "\n" : print_surroundings(around));
  return 0;
}

}  // namespace

void add_report(const Command& app) {
  const Command command =
      app.command("report",
                  "Print versions, cores, memory, limits, devices, links and disks of this node, and what is missing for which feature. "
                  "Under mpiexec or srun of all ranks it also prints differences between nodes. --measure prints a machine profile");
  auto options = std::make_shared<ReportOptions>();
  const Option json = command.flag("--json", options->json, "Print one JSON object");
  const Option measured =
      command.flag("--measure", options->measure,
                   "Measure products, passes over memory, copies, AdamW and, under mpiexec, collectives; print a profile "
                   "for `tessera plan --machine` (about 20 s on two cores)");
  measured.excludes(json);
  command.option("--threads", options->how.threads, "Threads of a rank while measuring; 0: its share of the cores")
      .between(0, 512)
      .needs(measured)
      .shows_default();
  command.option("--device", options->device, "Device to measure; auto: a GPU if there is one")
      .one_of({enum_words<RunDevice>.begin(), enum_words<RunDevice>.end()})
      .needs(measured)
      .shows_default();
  command.option("--disk", options->how.disks,
                 "Folder on a local disk to report or, with --measure, to write 512 MiB to and read; several are used at once");
  command.footer(
      "Examples:\n  tessera report --disk /tmp\n  srun tessera report\n  tessera report --measure > here.toml\n  mpiexec -n 2 tessera "
      "report --measure > "
      "here.toml\n  "
      "tessera plan inputs/quickstart.toml --ranks 2 --machine here.toml");
  command.does([options] {
    options->how.device = from_word<RunDevice>(options->device).value();
    return options->measure ? measure(*options) : report(*options);
  });
}

}  // namespace tessera
