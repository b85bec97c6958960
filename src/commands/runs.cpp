// tessera runs: what runs have come to.
#include <memory>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "commands/commands.hpp"
#include "commands/runs_compare.hpp"
#include "commands/runs_report.hpp"
#include "report/runs/run_summary.hpp"

namespace tessera {
namespace {

struct RunsOptions {
  std::string folder = "runs";
  bool json = false, verify = false;
};

int list(const RunsOptions& o) {
  const double now = unix_seconds();
  const std::vector<RunSummary> runs = summarise_runs(o.folder, {.now = now, .verify = o.verify});
  if (o.json)
    put("{}\n", runs_json(runs, now).dump(2, BadText::replace));
  else if (runs.empty())
    put("{}: no run in it\n", o.folder);
  else
    put("{}", print_runs(runs, now));
  return 0;
}

}  // namespace

void add_runs(const Command& app) {
  const Command runs = app.command("runs", "List runs: state, steps, loss, speed, newest checkpoint, goodput and health; or compare some");
  auto options = std::make_shared<RunsOptions>();
  runs.option("FOLDER", options->folder, "A folder of runs, or a run").shows_default();
  runs.flag("--json", options->json, "Print JSON");
  runs.flag("--verify", options->verify, "Read checkpoints, newest first, until one passes all checksums");
  runs.footer("Examples:\n  tessera runs\n  tessera runs runs/quickstart --json\n  tessera runs compare runs/a runs/b");
  runs.does([options] { return list(*options); });
  add_runs_compare(runs);
  add_runs_report(runs);
}

}  // namespace tessera
