// All commands and options as data: what shells complete, and the man page.
#pragma once
#include <string>
#include <vector>

namespace tessera {

struct OptionRow {
  std::vector<std::string> names;         ///< "--ranks", "--gpus"; of a place its name, "DECK"
  std::string help;                       ///< with its default
  std::vector<std::string> choices = {};  ///< the words that it takes, where they are fixed
  bool place = false, takes_value = false;
};

struct CommandRow {
  std::string path;  ///< "tessera deck check"
  std::string help, footer;
  std::vector<OptionRow> options;
  std::vector<std::string> commands = {};  ///< below it
  bool takes_keys = false;                 ///< overrides of a deck
};

/// Of the command line that read_command_line reads; the program itself first, each command before those below it.
std::vector<CommandRow> command_rows();

}  // namespace tessera
