// What people give where the folder of a Hugging Face model or a checkpoint is wanted: the other of the two, a folder of Hugging Face's
// cache, or the name of a model there.
#pragma once
#include <string>

namespace tessera {

/// Sentences that say what the path is, and the command or the path that is wanted; "" where it looks like neither of these. Each begins
/// with a space.
std::string instead_of_model(const std::string& path);
std::string instead_of_checkpoint(const std::string& path);

}  // namespace tessera
