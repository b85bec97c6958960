// tessera deck from-hf
#pragma once
#include "commands/command.hpp"
#include "deck/import/import.hpp"

namespace tessera {

void add_from_hf(const Command& deck);

/// The deck on standard output and its notes in the log, or an Error that lists every fault. `path`: what it was made of.
int print_imported(const std::string& path, const ImportedDeck& imported);

}  // namespace tessera
