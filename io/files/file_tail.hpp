// The end of a file that may be long, and written meanwhile.
#pragma once
#include <cstdint>
#include <string>

namespace tessera::io {

struct FileTail {
  std::string text;
  bool cut = false;  ///< the file has more before it
};

/// The last `most` bytes; nothing of a file that is not there. Error(storage) where it cannot be read.
FileTail read_tail(const std::string& path, std::int64_t most);

}  // namespace tessera::io
