// tessera runs report RUN: one HTML file of a run, with what the simulator says of it where a machine profile is given.
#include "commands/runs_report.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "commands/run_outlook.hpp"
#include "io/files/posix_file.hpp"
#include "report/page/page.hpp"
#include "report/page/runs_page.hpp"
#include "train/folder/run_folder.hpp"

namespace tessera {
namespace {

struct ReportOfRunOptions {
  std::vector<std::string> runs;
  std::string out;
  OutlookOptions outlook;
  bool json = false, watch = false;
  int every = 10;
};

/// A page, or with --json its data; and whether a run of it goes on.
struct WrittenPage {
  std::string text;
  bool goes_on = false;
};

bool goes_on(const RunSummary& run) { return run.state == RunState::running || run.state == RunState::starting; }

WrittenPage page_of_run(const ReportOfRunOptions& o, double now) {
  // 1. What the folder holds, and what `tessera runs` says of it.
  PageInput in;
  const std::string& folder = o.runs.front();
  in.run = read_run_history(folder);
  if (!in.run.traced.empty()) in.traced = read_traced_step(RunFolder{folder}.trace(in.run.traced.back()), in.run.traced.back());
  const RunSummary summary = summarise_run(folder, {.now = now});
  const bool live = goes_on(summary);
  if (summary.fault.empty() && summary.state != RunState::unknown) {
    in.state = word_of(summary.state);
    if (summary.state == RunState::failed) in.state = summary.reason;
  }
  in.health = health_of(summary, now);
  in.reload_seconds = o.watch && live ? o.every : 0;
  // 2. What plan and simulator say of its deck.
  add_outlook(in, o.outlook);
  // 3. The page.
  const RunPage page(std::move(in));
  return {.text = o.json ? page.data().dump(2, BadText::replace) + "\n" : page.html(), .goes_on = live};
}

WrittenPage page_of_runs(const ReportOfRunOptions& o, double now) {
  std::vector<RunHistory> histories;
  for (const std::string& folder : o.runs) histories.push_back(read_run_history(folder));
  RunComparison comparison = compare_runs(o.runs, now);
  const bool live = std::ranges::any_of(comparison.runs, [](const ComparedRun& run) { return goes_on(run.summary); });
  const RunsPage page(std::move(histories), std::move(comparison), now);
  return {.text = o.json ? page.data().dump(2, BadText::replace) + "\n" : page.html(o.watch && live ? o.every : 0), .goes_on = live};
}

void require_fitting_options(const ReportOfRunOptions& o) {
  if (o.runs.size() > 1 && !o.outlook.machine.empty())
    fail(ExitCode::usage, "--machine works for one run, and {} are named: leave it out, or name one run", o.runs.size());
  if (o.runs.size() > 1 && o.out.empty() && !o.json) fail(ExitCode::usage, "for several runs, name the file to write (-o runs.html)");
  if (o.watch && o.json) fail(ExitCode::usage, "--watch writes the page repeatedly, and --json writes no page: leave one of them out");
}

int report_of_run(const ReportOfRunOptions& o) {
  require_fitting_options(o);
  const std::string path = o.out.empty() ? o.runs.front() + "/report.html" : o.out;
  for (bool first = true;; first = false) {
    const WrittenPage page = o.runs.size() == 1 ? page_of_run(o, unix_seconds()) : page_of_runs(o, unix_seconds());
    if (o.json) return put_text(page.text), 0;
    io::AtomicFile file(path);
    file.file().write(0, page.text.data(), page.text.size());
    file.commit();
    if (first) put("{}\n", path);
    if (!o.watch || !page.goes_on) return 0;
    if (first) put("rewritten every {} s until the run ends; an open browser page follows\n", o.every), std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::seconds(o.every));
  }
}

}  // namespace

void add_runs_report(const Command& runs) {
  const Command command = runs.command(
      "report",
      "Write one HTML page of one or several runs, which opens without a network: curves, time and memory, ranks, events, and advice");
  auto options = std::make_shared<ReportOfRunOptions>();
  command.option("RUN", options->runs, "Folder of the run (run.output_dir); several runs share the diagrams").required();
  command.option("-o,--output", options->out, "File to write; by default RUN/report.html");
  command.flag("--watch", options->watch, "Rewrite the page until all its runs have ended; a browser that shows it reloads it");
  command.option("--every", options->every, "With --watch: seconds between two pages").between(1, 86400).shows_default();
  command.option("--machine", options->outlook.machine,
                 "Machine profile (a file, as of `tessera report --measure`, or the name of one of inputs/machines, for example h100_8): "
                 "predicts the step and the gain of each advice; by default the deck's run.machine");
  command
      .option("--ranks-per-node", options->outlook.ranks_per_node,
              "Ranks that share a node, for the prediction; 0: as in the profile, else all")
      .between(0, 1000000)
      .shows_default();
  command.flag("--json", options->json, "Print what the page shows as one JSON object, and write no page");
  command.footer(
      "Examples:\n  tessera runs report runs/quickstart\n  tessera runs report runs/quickstart --watch\n  tessera runs report runs/a "
      "runs/b -o "
      "both.html\n  tessera runs report runs/quickstart --machine here.toml -o "
      "quickstart.html");
  command.does([options] { return report_of_run(*options); });
}

}  // namespace tessera
