// How many files this process may have open.
#pragma once
#include <string>

namespace tessera {

/// Raises the limit that holds to the most that the system lets it be, 65,536 at most. For the start of a program, which starts others
/// with it.
void raise_open_files() noexcept;
/// What to do where a file cannot be opened for this reason: of the limit, how many there may be and how to have more.
std::string open_advice(int error_number);

}  // namespace tessera
