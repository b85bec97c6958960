// What libraries underneath can bear.
#pragma once

namespace tessera {

/// Compute threads of a rank. Kokkos keeps them in a table of this length and does not look at its end.
inline constexpr int most_threads = 512;

}  // namespace tessera
