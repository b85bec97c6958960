// Runs side by side: what their decks say, what they reached with the same number of tokens, speed, memory and goodput.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "report/runs/run_summary.hpp"

namespace tessera {

/// A loss, when the run had seen so many tokens.
struct LossPoint {
  double tokens = 0;
  double loss = 0;
  double weight = 1;  ///< tokens of its step
};

struct ComparedRun {
  RunSummary summary = {};
  std::string deck_fault = {};           ///< why its deck.toml cannot be read
  double tokens_before = 0, tokens = 0;  ///< before its first row, and up to its last one, padding included
  std::vector<LossPoint> losses = {}, validations = {};
  std::optional<double> seconds = {}, tokens_per_second = {}, mfu = {}, mfu_causal = {};  ///< medians of all steps
  Json start = Json::object();                                                            ///< what the last start says of itself
};

struct DifferingKey {
  std::string key;
  std::vector<std::string> values;  ///< "?" of a run without a deck
};

/// At so many tokens.
struct EqualTokens {
  double tokens = 0;
  std::vector<std::optional<double>> loss;        ///< mean over the tokens since the line before
  std::vector<std::optional<double>> validation;  ///< between the evaluations before and after, linearly
};

struct RunComparison {
  std::vector<ComparedRun> runs;
  std::vector<DifferingKey> keys;  ///< without run.output_dir
  std::vector<EqualTokens> lines;  ///< none where no number of tokens is one that all runs have rows of
  bool same_data = true;           ///< whether all are trained on and validated with the same
};

/// The lines at `most` numbers of tokens at most, up to the last one that all runs have reached.
std::vector<EqualTokens> at_equal_tokens(const std::vector<ComparedRun>& runs, std::int64_t most = 10);

/// Error(usage) where a folder is none of a run.
RunComparison compare_runs(const std::vector<std::string>& folders, double now);
std::string print_comparison(const RunComparison& comparison);
Json comparison_json(const RunComparison& comparison, double now);

}  // namespace tessera
