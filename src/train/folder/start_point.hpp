// What a run starts from: run.resume, the checkpoints of its folder and their lines of descent, made one answer. Rank 0 only; changes
// nothing.
#pragma once
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "io/checkpoint/survey.hpp"

namespace tessera {

struct Origin {
  std::string checkpoint;               ///< step folder to load; "" starts from new weights
  std::vector<std::string> candidates;  ///< run.resume = newest-good: the first of these that verifies is the one to load
  bool goes_back = false;               ///< to a checkpoint of its own that run.resume names: begins a line
};

/// Where run.resume = auto, newest-good or PATH leads in a run's folder. Error(checkpoint) where what stands there cannot be read: only
/// "there is nothing" starts anew.
Origin find_origin(const std::string& resume, const std::string& checkpoints);

/// Where a run goes back to by itself from what no data have made: its checkpoints before a step, the one to take first; `older`: so many
/// of the newest are left out, but for the last. If there are none, the checkpoint of another run or of an import with which the run began.
/// Empty: the run goes back to new weights. From there it makes the same once more, whichever it is. Error(checkpoint) where the folder
/// cannot be read.
std::vector<std::string> checkpoints_before(const std::string& checkpoints, const io::Lineage& lineage, std::int64_t step,
                                            std::int64_t older);

/// The line of descent that a run which starts from `checkpoint` ("": from new weights) goes on with. It stays in the line of the run's own
/// newest checkpoint; from any other one it begins a new line.
io::Lineage lineage_from(const std::string& checkpoint, bool goes_back, const std::string& checkpoints);
/// The first line of a folder that holds no checkpoints yet.
io::Lineage first_lineage(const std::string& checkpoint);

/// checkpoints/line.json: the line of the run under way, also where it has not saved yet.
std::string line_file(const std::string& checkpoints);

}  // namespace tessera
