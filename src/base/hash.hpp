// XXH3-128 digests: decks, schedules, shards, weights.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tessera {

struct Hash128 {
  std::uint64_t high = 0, low = 0;
  /// 32 lower-case hexadecimal digits.
  std::string hex() const;
  friend auto operator<=>(const Hash128&, const Hash128&) = default;
};

Hash128 hash_bytes(const void* data, std::size_t bytes);
inline Hash128 hash_text(std::string_view s) { return hash_bytes(s.data(), s.size()); }
/// Reads what hex() wrote; false if the text is not 32 hexadecimal digits.
bool parse_hash(std::string_view hex, Hash128& out);

/// A digest over a stream of pieces: same value as hash_bytes over their concatenation.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  void update(const void* data, std::size_t bytes);
  void update(std::string_view s) { update(s.data(), s.size()); }
  Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
