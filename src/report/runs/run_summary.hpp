// What a run has come to, told by the ends of its files: of a run of a million steps as few bytes are read as of one of ten.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "train/observe/goodput.hpp"

namespace tessera {

enum class RunState : std::uint8_t {
  starting,     ///< its lock is held, and no start of it has begun in its folder
  running,      ///< its lock is held
  finished,     ///< all steps are made
  interrupted,  ///< a signal ended it, and it has saved
  failed,
  killed,  ///< nobody holds its lock, and nothing says how it ended
  unknown  ///< of before there were events, or its lock cannot be looked at
};
const char* word_of(RunState state);

/// The checkpoint that a run would go on from.
struct NewestCheckpoint {
  std::int64_t step = -1;  ///< -1: there is none
  std::string fault;  ///< why it cannot be gone on from; "" where its index can be read, and its shards are there and as long as they were
  bool verified = false;  ///< it was read to the last byte
};

struct RunSummary {
  std::string folder = {}, name = {};
  std::string fault = {};  ///< why nothing can be told: no run, or files that cannot be read
  RunState state = RunState::unknown;
  std::string holder = {};          ///< of its lock
  std::string reason = {};          ///< for which it failed
  std::int64_t step = 0;            ///< steps that are done
  std::int64_t steps = 0;           ///< that it is to make; 0: not known
  std::optional<double> loss = {};  ///< of the last step
  std::optional<double> val_loss = {};
  std::optional<double> seconds = {}, tokens_per_second = {}, mfu = {}, mfu_causal = {};  ///< medians of the last steps
  bool of_peak = true;   ///< both are shares of a profile's peak; else of a measured product
  double last_seen = 0;  ///< when it last wrote, since 1970
  NewestCheckpoint checkpoint = {};
  std::vector<std::string> warnings = {};  ///< of its last start
  bool more_warnings = false;              ///< there may be more, further back than was read
  Goodput goodput = {};                    ///< none of a run of before there were events
  std::int64_t bytes_read = 0;             ///< of metrics.jsonl and events.jsonl
};

/// Whether there is a run: metrics.jsonl, events.jsonl, or deck.toml beside checkpoints (alone it may be anybody's).
bool is_run(const std::string& folder);

/// What its last start warned of, steps that stood still with it: texts in their order.
std::vector<std::string> warnings_of_last_start(std::span<const io::Event> events);

struct SummaryOptions {
  double now = 0;       ///< since 1970
  bool verify = false;  ///< reads checkpoints, the newest first, until one is whole to the last byte
};
/// Throws nothing over what it finds: `fault` and `checkpoint.fault` say it.
RunSummary summarise_run(const std::string& folder, const SummaryOptions& options);

/// Of a folder that is a run itself, or of the folders in it, sorted by name; those that are none come with a `fault`. Error(usage) where
/// there is no such folder.
std::vector<RunSummary> summarise_runs(const std::string& folder, const SummaryOptions& options);

/// In a few words: "3 warnings", "silent for 12 min"; "" where nothing is to be said.
std::string health_of(const RunSummary& run, double now);
/// One line a run, with what is to be said of each below; at most 100 columns wide where names are short.
std::string print_runs(const std::vector<RunSummary>& runs, double now);
Json runs_json(const std::vector<RunSummary>& runs, double now);

}  // namespace tessera
