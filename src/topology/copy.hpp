// Copies of blocks that nobody reads soon.
#pragma once
#include <cstddef>

namespace tessera {

/// memcpy; a large block is written past the caches, which saves reading the target's lines before they are overwritten. The stores are
/// complete (ordered before later ones) on return.
void copy_block(void* to, const void* from, std::size_t bytes);

}  // namespace tessera
