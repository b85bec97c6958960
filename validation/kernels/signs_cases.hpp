// Tensors that travel as signs between ranks: sizes at the borders of words and parts, and the definition, an element after the other.
#pragma once
#include <iterator>

#include "kernels/signs/signs.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct SignCase {
  std::int64_t n;
  int ranks;
};
/// Less than a word, whole ones, parts of which the last is less, or nothing; more than a grain of threads' work.
inline const SignCase sign_cases[] = {{1, 1}, {31, 2}, {32, 2}, {64, 2}, {77, 3}, {4096, 2}, {5001, 4}, {70'003, 3}};

/// Words and a scale of each rank, as they lie in blocks that follow each other with a word of another tensor between.
struct SignBlocksOf {
  std::int64_t part, step;
  std::vector<std::uint32_t> words;

  SignBlocksOf(const SignCase& c, std::int64_t blocks)
      : part(sign_part(c.n, c.ranks)), step(part / sign_word + 2), words(poisoned<std::uint32_t>(blocks * step)) {}
  std::uint32_t* word(std::uint32_t* of, std::int64_t block) const { return of + block * step; }
  float* scale(std::uint32_t* of, std::int64_t block = 0) const { return reinterpret_cast<float*>(of + block * step + part / sign_word); }
};

/// Numbers of one size, with zeros of both signs among them.
inline std::vector<float> signed_numbers(std::int64_t n, unsigned seed, float size = 1e-3f) {
  std::vector<float> x = random_values<float>(n, seed, size);
  for (std::size_t i = 0; i < x.size(); i += 11) x[i] = i % 2 == 0 ? 0.0f : -0.0f;
  return x;
}

/// What is left of v, and the words that it goes as; the scale is of all of it.
struct SignsByDefinition {
  float scale = 0;
  std::vector<float> left;
  std::vector<bool> up;

  explicit SignsByDefinition(const std::vector<float>& v) {
    FixedSum sum;
    for (std::size_t begin = 0; begin < v.size(); begin += sign_block) {
      double chains[32] = {};  // each in order, joined by halves
      for (std::size_t i = begin; i < std::min(v.size(), begin + sign_block); ++i) {
        const auto x = static_cast<double>(v[i]);
        chains[i % 32] = std::fma(x, x, chains[i % 32]);
      }
      for (int half = 16; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) chains[i] += chains[i + half];
      sum.add(chains[0]);
    }
    if (!v.empty()) scale = static_cast<float>(std::sqrt(sum.value() / static_cast<double>(v.size())));
    for (const float x : v) {
      up.push_back(!(x < 0));
      left.push_back(x - (up.back() ? scale : -scale));
    }
  }
};

}  // namespace tessera::kernels::testing
