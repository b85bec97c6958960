// What a rank writes to a folder and reads back.
#pragma once
#include "report/preflight/judge.hpp"

namespace tessera {

/// Past the page cache where the file system can do that, in a file without a name, which goes with the process however it ends. What is
/// wrong becomes the fault of a measure: a folder that cannot be written to, less room than `free_space`, other bytes than were written.
void measure_folder(const std::string& folder, double seconds, std::int64_t free_space, RankMeasures& measures);

}  // namespace tessera
