// Where bytes lie.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace tessera {

/// `shared` is host memory that the ranks of one node map from each other, so that collectives copy once; it is the host's counterpart of
/// registered device memory. In a CPU build device is host. `copies` are files in a node's memory, which outlive the process.
enum class Tier : std::uint8_t { device, pinned, host, shared, nvme, copies };
inline constexpr int tier_count = 6;
/// Bytes of each tier.
using TierBytes = std::array<std::int64_t, tier_count>;
std::string_view name_of(Tier);

}  // namespace tessera
