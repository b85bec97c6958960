#include "base/hash.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <charconv>

namespace tessera {

std::string Hash128::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Hash128 hash_bytes(const void* data, std::size_t bytes) {
  XXH128_hash_t h = XXH3_128bits(data, bytes);
  return {h.high64, h.low64};
}

bool parse_hash(std::string_view hex, Hash128& out) {
  if (hex.size() != 32) return false;
  auto read = [](std::string_view s, std::uint64_t& v) {
    auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), v, 16);
    return error == std::errc() && end == s.data() + s.size();
  };
  return read(hex.substr(0, 16), out.high) && read(hex.substr(16), out.low);
}

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_128bits_reset(state_->xxh); }
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
void Hasher::update(const void* data, std::size_t bytes) { XXH3_128bits_update(state_->xxh, data, bytes); }
Hash128 Hasher::digest() const {
  XXH128_hash_t h = XXH3_128bits_digest(state_->xxh);
  return {h.high64, h.low64};
}

}  // namespace tessera
