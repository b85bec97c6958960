// What stands in a run's checkpoints folder, and how sure we are of it. The one reading of that folder: where a run goes on, what a save
// may remove and what a command suggests all follow from it. Nothing here throws over the folder's state or changes it.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.hpp"

namespace tessera::io {

struct CheckpointEntry {
  std::int64_t step = 0;
  std::string path;
  std::string fault;   ///< why its index cannot be read, with path and reason; "" where it was read
  std::string digest;  ///< CheckpointReader::digest
  Lineage lineage = Lineage(1);
  std::int64_t best_step = -1;  ///< best_step_of its values

  std::int64_t line() const { return lineage.back().number; }
};

struct CheckpointSurvey {
  std::string root;
  std::string fault;                      ///< why the folder cannot be listed; "" also where there is none
  std::vector<CheckpointEntry> entries;   ///< highest step first; a folder whose name ends in ".partial" is none
  std::vector<std::string> superseded;    ///< "step-N.replaced" beside "step-N": what a kill left of an older save
  std::optional<CheckpointEntry> latest;  ///< what `latest` leads to
  std::string latest_fault;               ///< why `latest` leads to nothing that can be used; "" also where there is no `latest`

  const CheckpointEntry* at_step(std::int64_t step) const;
};

CheckpointSurvey survey_checkpoints(const std::string& root);

/// Where a run goes on: what `latest` leads to; without `latest` the newest checkpoint of the newest line. Null with a fault: something is
/// there, and it cannot be read or cannot be told. Null without one: there is nothing.
struct Head {
  std::optional<CheckpointEntry> entry;
  std::string fault;
};
Head find_head(const CheckpointSurvey& survey);

/// Whether what ends in `lineage` has come through this checkpoint.
bool descends(const CheckpointEntry& entry, const Lineage& lineage);

/// All that can be read, best first: the line of descent that ends in `lineage` backwards, then newer lines before older ones.
std::vector<CheckpointEntry> by_descent(const CheckpointSurvey& survey, const Lineage& lineage);

/// The step of "step-N"; nothing for other names, "step-N.partial" among them.
std::optional<std::int64_t> step_of_name(std::string_view name);

}  // namespace tessera::io
