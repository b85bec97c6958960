// What a command line means by CHECKPOINT.
#pragma once
#include <string>

namespace tessera {

inline constexpr const char* checkpoint_help = "Step folder, or a run's folder: then the checkpoint from which the run would resume";

/// The step folder of `path`: itself, or of a run's folder (or its checkpoints) the checkpoint from which the run would go on, which the
/// log names. Error(checkpoint) where the run has none, or that one cannot be read. What is none of these stays as it is.
std::string named_checkpoint(const std::string& path);

}  // namespace tessera
