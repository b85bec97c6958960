// Version of the program, from CMake.
#pragma once

namespace tessera {
const char* version();
}  // namespace tessera
