// Opening what a user names as a file. A pipe that nobody writes to would be waited for, a device may have no end: both are refused.
#pragma once
#include <sys/stat.h>

#include <cstdint>
#include <string>

namespace tessera {

/// "folder", "pipe", "socket" or "device"; no text for a regular file.
const char* other_than_regular(const struct stat& what);

/// A descriptor that is open for reading, or -1 and in `why` the reason and what to do.
int open_regular(const std::string& path, std::string& why);

/// All bytes of a regular file of at most `most` bytes. Returns false with the reason in `why` where that cannot be.
bool read_regular(const std::string& path, std::int64_t most, std::string& bytes, std::string& why);

}  // namespace tessera
