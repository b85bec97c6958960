// Tokens, tables and gradients of an embedding, and of a slice of one.
#pragma once
#include <ostream>

#include "kernels/embedding/embedding.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct EmbeddingCase {
  std::int64_t M, C, V;
  double same = 0;                   ///< share of the tokens that are one token, as a space is in text
  std::int64_t first = 0, part = 0;  ///< of a table that has a slice of the vocabulary: its first token, and how many
  float scale = 1;
  std::int64_t rows() const { return part > 0 ? part : V; }
  VocabularySlice slice() const { return {.first = first, .whole = part == 0}; }
};
/// One token and many, a vocabulary of one to three digits, several tiles of the sort, tokens that occur hundreds of times, slices, scales.
inline const EmbeddingCase embedding_cases[] = {{1, 1, 1},
                                                {77, 48, 13},
                                                {77, 48, 5, 0.5},
                                                {77, 1, 1013},
                                                {1, 1013, 300},
                                                {77, 1013, 7, 0.5},
                                                {300, 5, 1},
                                                {100, 1013, 300},
                                                {70, 520, 256},
                                                {500, 65, 1000, 0.5},
                                                {2500, 8, 70},
                                                {4200, 8, 100000},
                                                {600, 12, 257, 0.9},
                                                {600, 12, 257, 0.5, 100, 128},
                                                {900, 40, 1013, 0, 757, 256},
                                                {77, 48, 13, 0, 0, 0, 45.254834f},
                                                {600, 13, 257, 0.5, 100, 128, -0.3f}};
inline std::ostream& operator<<(std::ostream& out, const EmbeddingCase& c) {
  return out << c.M << " tokens of " << c.C << ", vocabulary " << c.V << ", rows from " << c.first << " on: " << c.rows() << ", scale "
             << c.scale;
}

/// The last of the vocabulary is among them.
inline std::vector<std::int32_t> random_tokens(const EmbeddingCase& c) {
  std::mt19937 engine(3 + test_seed());
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(c.M));
  for (auto& t : tokens) {
    const bool same = std::uniform_real_distribution<double>(0, 1)(engine) < c.same;
    t = static_cast<std::int32_t>(same ? c.V / 2 : std::uniform_int_distribution<std::int64_t>(0, c.V - 1)(engine));
  }
  tokens.back() = static_cast<std::int32_t>(c.V - 1);
  return tokens;
}

template <class T>
struct EmbeddingInputs {
  EmbeddingCase c;
  std::vector<std::int32_t> tokens;
  std::vector<T> table, d_out;
  std::vector<float> d_table;  ///< what is there before
  explicit EmbeddingInputs(const EmbeddingCase& c)
      : c(c),
        tokens(random_tokens(c)),
        table(random_values<T>(c.rows() * c.C, 1)),
        d_out(random_values<T>(c.M * c.C, 2)),
        d_table(random_values<float>(c.rows() * c.C, 3)) {}
  EmbeddingForward forward_arguments(T* out) const {
    return {.out = out,
            .table = table.data(),
            .tokens = tokens.data(),
            .M = c.M,
            .C = c.C,
            .dtype = dtype_of<T>(),
            .V = c.rows(),
            .slice = c.slice(),
            .scale = c.scale};
  }
  EmbeddingBackward backward_arguments() {
    return {.d_table = d_table.data(),
            .d_out = d_out.data(),
            .tokens = tokens.data(),
            .M = c.M,
            .C = c.C,
            .V = c.rows(),
            .dtype = dtype_of<T>(),
            .slice = c.slice(),
            .scale = c.scale};
  }
};

}  // namespace tessera::kernels::testing
