// Who of the ranks is slower than the others, or has a fault. Pure.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"

namespace tessera {

enum class RankMeasureKind : std::uint8_t {
  work,      ///< products and copies of a rank alone
  exchange,  ///< with its neighbours
  all,       ///< of all ranks at once: says nothing of one of them, and is judged by nobody
  disk
};

/// One thing that a rank has measured.
struct RankMeasure {
  std::string name;  ///< "product in bf16", "write to runs"
  RankMeasureKind kind = RankMeasureKind::work;
  double rate = 0;         ///< FLOP/s of products, else bytes/s
  std::string fault = {};  ///< why it could not be measured
  bool in_flops() const { return name.starts_with("product"); }
};
struct RankMeasures {
  std::string host;
  std::vector<RankMeasure> measures;
};
/// As one text, for another rank.
std::string pack(const RankMeasures& rank);
RankMeasures unpack_measures(const std::string& text);
/// Of two passes the faster rate of each measure, and every fault.
RankMeasures faster_of(RankMeasures first, const RankMeasures& second);

/// Something that should not be so.
struct PreflightFinding {
  enum class Kind : std::uint8_t { fault, health, slow, difference };
  Kind kind = Kind::fault;
  std::string where;            ///< "rank 5 on n1", "n1"
  std::vector<int> ranks = {};  ///< none: of a node
  std::string what;
};

/// A row of the table.
struct MeasureRow {
  std::string name;
  RankMeasureKind kind = RankMeasureKind::work;
  double median = 0;  ///< of an even number the faster one of the two in the middle: of two ranks the slower one can then be told
  int worst = -1;     ///< rank
  double share = 0;   ///< of the median that the worst reaches
  std::vector<std::optional<double>> rates;  ///< by rank
};

struct PreflightJudgement {
  std::vector<MeasureRow> rows;            ///< in the order in which they were measured
  std::vector<PreflightFinding> findings;  ///< faults first, then who is slow, the slowest first
};
/// By rank. Ranks of a host that are slow in the same are one finding.
PreflightJudgement judge(const std::vector<RankMeasures>& ranks, const PreflightKeys& keys);

/// "721.4 GFLOP/s", "12.3 GB/s"
std::string rate_text(const RankMeasure& like, double rate);
/// "rank 5 on n1", "ranks 0-7 on n1"
std::string ranks_on(const std::vector<int>& ranks, const std::string& host);

}  // namespace tessera
