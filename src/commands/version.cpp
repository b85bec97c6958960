#include <fmt/core.h>

#include "commands/commands.hpp"
#include "train/engine/program_identity.hpp"

namespace tessera {

std::string version_text() {
  std::string text;
  for (const IdentityField& field : program_identity())
    text += field.name == "version" ? fmt::format("tessera {}", field.value) : fmt::format("\n{} {}", field.name, field.value);
  return text + "\n" + TESSERA_LIBRARIES;
}

}  // namespace tessera
