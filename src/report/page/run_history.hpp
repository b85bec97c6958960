// What the folder of a run tells of it: rows of metrics.jsonl, events, its deck and the steps that were traced.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "io/metrics/events.hpp"
#include "train/observe/goodput.hpp"

namespace tessera {

/// A column a figure, over the rows of steps. NaN where a row has none.
struct StepColumns {
  std::vector<std::int64_t> step;
  std::vector<double> time;  ///< s since 1970
  /// In the order in which they came: "loss", "seconds_of/forward", "loss_of_files/PATH".
  std::vector<std::pair<std::string, std::vector<double>>> columns;

  std::size_t rows() const { return step.size(); }
  /// Null where no row had it.
  const std::vector<double>* find(const std::string& name) const;
  /// Of all that begin so, with what follows.
  std::vector<std::pair<std::string, const std::vector<double>*>> group(const std::string& prefix) const;
};

struct EvaluationRow {
  std::int64_t step = 0;
  double loss = 0;
};
struct SaveRow {
  std::int64_t step = 0;
  bool weights = false;  ///< alone
  double time = 0, seconds = 0, stall = 0;
};
/// A start's own row.
struct StartRow {
  std::int64_t step = 0;  ///< steps that were done
  double time = 0;
  std::int64_t ranks = 0;
  std::vector<std::pair<std::string, std::string>> facts;  ///< program and libraries
};

struct RunHistory {
  std::string folder;
  StepColumns steps;
  std::vector<StepRow> work;  ///< of the same rows
  std::vector<EvaluationRow> evaluations;
  std::vector<SaveRow> saves;
  std::vector<StartRow> starts;
  std::vector<io::Event> events;          ///< none of a run from before there were any
  std::string deck;                       ///< text of deck.toml; empty where there is none
  std::vector<std::int64_t> traced;       ///< steps, rising
  std::vector<std::int64_t> checkpoints;  ///< steps, rising

  /// Ranks of the last start; 0 where nothing says it.
  std::int64_t ranks() const;
};

/// Error(usage) where the folder is none of a run: neither metrics.jsonl nor deck.toml lies there.
RunHistory read_run_history(const std::string& folder);

}  // namespace tessera
