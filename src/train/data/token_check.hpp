// What is made sure of a token file before the first step, by all ranks together.
#pragma once
#include <cstdint>

#include "io/tokens/tokens.hpp"
#include "topology/world.hpp"

namespace tessera {

/// On return file.facts() is there on every rank, all ranks have the same tokens, and each id is below `vocab`. A file without checksums is
/// read whole for that, each rank its share, and what was found is kept beside it where that can be written; a stop signal ends this at
/// once with Error(interrupted). Collective over `world`; null: this process alone.
void check_tokens(io::TokenFile& file, std::int64_t vocab, const World* world);

}  // namespace tessera
