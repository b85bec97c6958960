#include "topology/communicators/copy.hpp"

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace tessera {
namespace {

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

void stream_piece(void* to, const void* from, std::size_t bytes) {
#if defined(__AVX512F__) || defined(__AVX2__)
  if (bytes >= line + burst) {
    char* target = static_cast<char*>(to);
    const char* source = static_cast<const char*>(from);
    std::size_t head = (line - reinterpret_cast<std::uintptr_t>(target) % line) % line;
    std::size_t body = (bytes - head) / burst * burst;
    std::memcpy(target, source, head);
    for (std::size_t at = head; at < head + body; at += burst) stream_burst(target + at, source + at);
    std::memcpy(target + head + body, source + head + body, bytes - head - body);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

void streams_done() {
#if defined(__AVX512F__) || defined(__AVX2__)
  _mm_sfence();
#endif
}

void copy_block(void* to, const void* from, std::size_t bytes) {
  if (bytes < stream_minimum) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  stream_piece(to, from, bytes);
  streams_done();
}

}  // namespace tessera
