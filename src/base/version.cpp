#include "base/version.hpp"

#if defined(__AVX512BF16__)
#define TESSERA_WIDEST "AVX512_BF16"
#elif defined(__AVX512F__)
#define TESSERA_WIDEST "AVX512"
#elif defined(__AVX2__)
#define TESSERA_WIDEST "AVX2"
#else
#define TESSERA_WIDEST "no AVX2"
#endif

namespace tessera {
const char* version() { return TESSERA_VERSION; }
const char* compiler() { return TESSERA_COMPILER; }
const char* host_architecture() { return TESSERA_ARCHITECTURE " (" TESSERA_WIDEST ")"; }
}  // namespace tessera
