#include "io/tokens/loss_mask.hpp"

#include <bit>

namespace tessera::io {

std::int64_t counted(std::span<const std::uint8_t> mask, std::int64_t tokens) {
  std::int64_t sum = 0;
  for (const std::uint8_t bits : mask.first(static_cast<std::size_t>(tokens / 8))) sum += std::popcount(bits);
  for (std::int64_t token = tokens / 8 * 8; token < tokens; ++token) sum += counts(mask, token);
  return sum;
}

}  // namespace tessera::io
