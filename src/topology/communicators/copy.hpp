// Copies of blocks that nobody reads soon.
#pragma once
#include <cstddef>

namespace tessera {

/// memcpy; a large block is written past the caches, which saves reading the target's lines before they are overwritten. The stores are
/// complete (ordered before later ones) on return.
void copy_block(void* to, const void* from, std::size_t bytes);

/// The same for one piece of a large block, whatever the piece's size. After the last piece call streams_done.
void stream_piece(void* to, const void* from, std::size_t bytes);
void streams_done();

/// From this size on a block is streamed. Below, it may still be in a cache when it is used; glibc's own limit is a large part of the
/// last-level cache, which on a machine that many share is far more than this rank's part.
inline constexpr std::size_t stream_minimum = std::size_t{1} << 20;

}  // namespace tessera
