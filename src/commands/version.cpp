#include <fmt/core.h>

#include "base/log.hpp"
#include "commands/commands.hpp"
#include "train/engine/program_identity.hpp"

namespace tessera {

std::string version_text() {
  std::string text;
  for (const IdentityField& field : program_identity())
    text += field.name == "version" ? fmt::format("tessera {}", field.value) : fmt::format("\n{} {}", field.name, field.value);
  return text + "\n" + TESSERA_LIBRARIES;
}

void add_version(const Command& app) {
  app.command("version", "Program, compiler and library versions, one a line; the same as --version").does([] {
    put("{}\n", version_text());
    return 0;
  });
}

}  // namespace tessera
