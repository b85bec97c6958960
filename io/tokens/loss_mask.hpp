// Which tokens count in the loss: a bit each, the first token's lowest, in the dataset "loss_mask" (uint8) beside "tokens". A file without
// one counts all.
#pragma once
#include <cstdint>
#include <span>

#include "base/types.hpp"

namespace tessera::io {

constexpr std::int64_t mask_bytes(std::int64_t tokens) { return ceil_div(tokens, 8); }
constexpr bool counts(std::span<const std::uint8_t> mask, std::int64_t token) {
  return (mask[static_cast<std::size_t>(token / 8)] >> (token % 8) & 1) != 0;
}
/// Tokens of the first `tokens` that count.
std::int64_t counted(std::span<const std::uint8_t> mask, std::int64_t tokens);

}  // namespace tessera::io
