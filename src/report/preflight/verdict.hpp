// What a preflight has come to: who is named, the table, and how nodes differ.
#pragma once
#include <string>
#include <vector>

#include "report/nodes/compare.hpp"
#include "report/preflight/judge.hpp"

namespace tessera {

struct PreflightVerdict {
  std::string map = {};  ///< "0-3 on n1, 4-7 on n2"
  std::vector<std::string> hosts = {};
  int nodes = 1;
  double seconds = 0;  ///< that it took
  PreflightJudgement judgement = {};
  std::vector<NodeDifference> differences = {};
  bool differences_count = false;  ///< preflight.same_nodes
};

/// 0: nothing is wrong; 6: somebody is slow, or a node is not well or not like the others; 7: a folder cannot be used.
int status_of(const PreflightVerdict& verdict);
/// Who is named first, in a line; empty where nobody is.
std::string headline(const PreflightVerdict& verdict);
std::string print_verdict(const PreflightVerdict& verdict);
/// One object: "status", "ranks", "seconds", "found", "measures" with the rate of each rank, "nodes" with how they differ.
std::string verdict_json(const PreflightVerdict& verdict);

}  // namespace tessera
