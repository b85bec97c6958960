#include "topology/copy.hpp"

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace tessera {
namespace {

// Below this a block may still be in a cache when it is used; glibc's own limit is a large part of the last-level cache, which on a shared
// machine is far more than this rank's share of it.
constexpr std::size_t stream_minimum = std::size_t{1} << 20;
constexpr std::size_t line = 64, burst = 4 * line;

#if defined(__AVX512F__)
void stream_burst(char* to, const char* from) {
  __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + line);
  __m512i c = _mm512_loadu_si512(from + 2 * line), d = _mm512_loadu_si512(from + 3 * line);
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), a);
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to + line), b);
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 2 * line), c);
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 3 * line), d);
}
#elif defined(__AVX2__)
void stream_burst(char* to, const char* from) {
  for (std::size_t at = 0; at < burst; at += 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at)));
}
#endif

}  // namespace

void copy_block(void* to, const void* from, std::size_t bytes) {
#if defined(__AVX512F__) || defined(__AVX2__)
  if (bytes >= stream_minimum) {
    char* target = static_cast<char*>(to);
    const char* source = static_cast<const char*>(from);
    std::size_t head = (line - reinterpret_cast<std::uintptr_t>(target) % line) % line;
    std::memcpy(target, source, head);
    std::size_t body = (bytes - head) / burst * burst;
    for (std::size_t at = head; at < head + body; at += burst) stream_burst(target + at, source + at);
    std::memcpy(target + head + body, source + head + body, bytes - head - body);
    _mm_sfence();
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace tessera
