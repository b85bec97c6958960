// What shells complete: scripts made of command_rows().
#pragma once
#include <string>
#include <vector>

#include "commands/command_rows.hpp"

namespace tessera {

std::string bash_completion(const std::vector<CommandRow>& rows);
std::string zsh_completion(const std::vector<CommandRow>& rows);
std::string fish_completion(const std::vector<CommandRow>& rows);

/// The manual page tessera(1), in the macros of man.
std::string man_page(const std::vector<CommandRow>& rows);

}  // namespace tessera
