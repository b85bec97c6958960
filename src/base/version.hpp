// Version of the program and what it was compiled with, from CMake.
#pragma once

namespace tessera {
const char* version();
/// "GNU 12.2.0"
const char* compiler();
/// TESSERA_HOST_ARCH and the widest instructions that came of it: "native (AVX512_BF16)".
const char* host_architecture();
}  // namespace tessera
