// tessera runs report RUN: one HTML file of a run, with what the simulator says of it where a machine profile is given.
#include "commands/runs_report.hpp"

#include <algorithm>
#include <memory>

#include "base/log.hpp"
#include "commands/run_outlook.hpp"
#include "io/files/posix_file.hpp"
#include "report/page/page.hpp"
#include "train/folder/run_folder.hpp"

namespace tessera {
namespace {

struct ReportOfRunOptions {
  std::string run, out;
  OutlookOptions outlook;
  bool json = false;
};

int report_of_run(const ReportOfRunOptions& o) {
  // 1. What the folder holds.
  PageInput in;
  in.run = read_run_history(o.run);
  if (!in.run.traced.empty()) in.traced = read_traced_step(RunFolder{o.run}.trace(in.run.traced.back()), in.run.traced.back());
  // 2. What plan and simulator say of its deck.
  add_outlook(in, o.outlook);
  // 3. The page.
  const RunPage page(std::move(in));
  if (o.json) {
    put_text(page.data().dump(2, BadText::replace) + "\n");
    return 0;
  }
  const std::string path = o.out.empty() ? o.run + "/report.html" : o.out, text = page.html();
  io::AtomicFile file(path);
  file.file().write(0, text.data(), text.size());
  file.commit();
  put("{}\n", path);
  return 0;
}

}  // namespace

void add_runs_report(const Command& runs) {
  const Command command = runs.command(
      "report",
      "One HTML page of a run, which opens without a network: curves, time and memory, ranks, a step's tasks, events, and advice");
  auto options = std::make_shared<ReportOfRunOptions>();
  command.option("RUN", options->run, "Folder of the run (run.output_dir)").required();
  command.option("-o,--output", options->out, "File to write; RUN/report.html where it is left out");
  command.option("--machine", options->outlook.machine,
                 "Machine profile (a file, as of `tessera report --measure`, or the name of one of inputs/machines, for example h100_8): "
                 "predicts the step, and what advice comes to; "
                 "run.machine of the deck where it is left out");
  command
      .option("--ranks-per-node", options->outlook.ranks_per_node,
              "Ranks that share a node, for the prediction; 0: what the profile says, else all")
      .between(0, 1000000)
      .shows_default();
  command.flag("--json", options->json, "Print what the page shows as one JSON object, and write no page");
  command.footer(
      "Examples:\n  tessera runs report runs/quickstart\n  tessera runs report runs/quickstart --machine here.toml -o "
      "quickstart.html");
  command.does([options] { return report_of_run(*options); });
}

}  // namespace tessera
