#include "commands/runs_compare.hpp"

#include <memory>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "report/runs/run_comparison.hpp"

namespace tessera {
namespace {

struct CompareOptions {
  std::vector<std::string> folders;
  bool json = false;
};

int compare(const CompareOptions& o) {
  const double now = unix_seconds();
  const RunComparison comparison = compare_runs(o.folders, now);
  put("{}", o.json ? comparison_json(comparison, now).dump(2, BadText::replace) + "\n" : print_comparison(comparison));
  return 0;
}

}  // namespace

void add_runs_compare(const Command& runs) {
  const Command command = runs.command("compare", "Compare runs: keys that differ, losses at equal tokens, speed, planned memory, goodput");
  auto options = std::make_shared<CompareOptions>();
  command.option("RUN", options->folders, "Folders of runs").required().at_least(2);
  command.flag("--json", options->json, "Print JSON");
  command.footer("Example:\n  tessera runs compare runs/a runs/b");
  command.does([options] { return compare(*options); });
}

}  // namespace tessera
