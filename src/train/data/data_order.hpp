// Which sample of the data comes when: a keyed permutation, so that there are no index arrays and the whole state is one integer.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tessera {

/// Sample `cursor` of a run over `samples` samples. Each epoch is a permutation of its own (a Feistel network over the next power of four,
/// walked until it lands inside: Black and Rogaway, CT-RSA 2002). Depends on (seed, cursor) alone, never on ranks.
std::int64_t sample_at(std::uint64_t seed, std::int64_t samples, std::int64_t cursor);

/// The seed of the order of file `number` of a mixture: files of one size are not in one order. That of file 0 is the run's.
std::uint64_t seed_of_file(std::uint64_t seed, std::size_t number);

}  // namespace tessera
