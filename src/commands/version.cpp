#include <fmt/core.h>

#include "commands/commands.hpp"

namespace tessera {

std::string version_text() { return fmt::format("tessera {}\ncompiler {}\n{}", TESSERA_VERSION, TESSERA_COMPILER, TESSERA_LIBRARIES); }

}  // namespace tessera
