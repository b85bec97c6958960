// Which data a run is of: what its files hold, and not where they lie. Checkpoints carry it.
#pragma once
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.hpp"

namespace tessera {

/// A line for each place of data.train where the files of a checkpoint held something else than those of now, with both digests; and where
/// only their order is another, that. Empty: the same data.
std::vector<std::string> data_differences(const std::vector<io::CheckpointData>& there, const std::vector<io::CheckpointData>& here);

/// Holds the data of a start, which goes on from `checkpoint`, against what the checkpoint carries. Other data in the run's own folder
/// (`own`) are Error(usage), or with `overwrite` false: the run is another one. Of another run's checkpoint they are said, and so is that
/// an older one carries nothing.
bool goes_on_with(const io::CheckpointReader& checkpoint, const std::vector<io::CheckpointData>& here, bool own, bool overwrite);

}  // namespace tessera
