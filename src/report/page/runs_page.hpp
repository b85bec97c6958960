// Several runs on one page: the same figure of each in one chart, over steps, tokens or hours.
#pragma once
#include "report/page/run_history.hpp"
#include "report/runs/run_comparison.hpp"

namespace tessera {

class RunsPage {
 public:
  /// In the order of the comparison's runs.
  RunsPage(std::vector<RunHistory> runs, RunComparison comparison, double now);
  Json data() const;
  std::string html(int reload_seconds) const;

 private:
  std::vector<RunHistory> runs_;
  RunComparison comparison_;
  double now_;
};

}  // namespace tessera
