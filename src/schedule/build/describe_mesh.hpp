// What a user is told of a mesh beside its sizes.
#pragma once
#include <string>

#include "deck/deck.hpp"
#include "topology/mesh.hpp"

namespace tessera {

/// How context-parallel ranks see whole sequences, where there is something to say: " (2 have the same key and value head)" of ranks that
/// are more than the heads they share, " (keys and values go round in a ring)"; else empty.
std::string describe_context(const Deck& deck, const Mesh& mesh);

/// " (2 make parts of the same key and value head)" of tensor-parallel ranks that are more than these heads; else empty.
std::string describe_tensor(const Deck& deck, const Mesh& mesh);

/// " in 2 groups with the whole state each"; nothing where there is one.
std::string describe_replicas(const Mesh& mesh);

}  // namespace tessera
