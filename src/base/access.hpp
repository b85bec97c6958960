// How code touches bytes that it is given.
#pragma once
#include <cstdint>

namespace tessera {

enum class Access : std::uint8_t { read, write, add };

}  // namespace tessera
