// A fuzz target: a file of this folder defines `read_input`, which takes any bytes. It may refuse them as the program would, with an Error
// of the reader's own status; all else, a crash, a hang, another status or an acceptance that does not hold together, is a defect.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.hpp"

namespace tessera::fuzz {

/// The status with which the target refuses.
extern const ExitCode refusal;
void read_input(std::string_view bytes);

/// Says what does not hold and ends the program.
[[noreturn]] void defect(const std::string& what);

/// A file in memory with these bytes, as a path; one at a time.
std::string file_of(std::string_view bytes);
/// The same under a name of its own in a folder that holds nothing else; its path.
std::string folder_with(const std::string& name, std::string_view bytes);

}  // namespace tessera::fuzz
