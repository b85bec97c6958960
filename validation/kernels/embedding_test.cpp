#include "kernels/embedding/embedding.hpp"

#include "base/check.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing::embedding_test {
namespace {

struct Case {
  std::int64_t M, C, V;
};
const Case cases[] = {{1, 1, 1}, {77, 48, 5}, {1, 1013, 300}, {77, 1013, 7}, {500, 65, 1000}, {3000, 300, 257}};

/// Half of the tokens are one id, as a space is in text.
std::vector<std::int32_t> skewed_tokens(std::int64_t M, std::int64_t V) {
  std::mt19937 engine(3);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(M));
  for (std::int32_t& t : tokens) t = static_cast<std::int32_t>(engine() % 2 ? V / 2 : engine() % static_cast<unsigned>(V));
  return tokens;
}

template <class T>
struct Trial {
  Case c;
  std::vector<std::int32_t> tokens;
  std::vector<T> table, out, d_out;
  std::vector<float> d_table;
  explicit Trial(Case c)
      : c(c),
        tokens(skewed_tokens(c.M, c.V)),
        table(random_values<T>(c.V * c.C, 1)),
        out(poisoned<T>(c.M * c.C)),
        d_out(random_values<T>(c.M * c.C, 2)),
        d_table(random_values<float>(c.V * c.C, 3)) {}
  void forward() {
    embedding_forward({}, {.out = out.data(), .table = table.data(), .tokens = tokens.data(), .M = c.M, .C = c.C, .dtype = dtype_of<T>()});
  }
  void backward() {
    EmbeddingBackward p{
        .d_table = d_table.data(), .d_out = d_out.data(), .tokens = tokens.data(), .M = c.M, .C = c.C, .V = c.V, .dtype = dtype_of<T>()};
    Workspace workspace(embedding_backward_workspace_bytes(p));
    embedding_backward(workspace.context(), p);
  }
};

// Both directions are exact in their order of sums, so the naive loop must agree to the bit.
template <class T>
void check_against_naive_loops() {
  for (Case c : cases) {
    SCOPED_TRACE(::testing::Message() << "M " << c.M << ", C " << c.C << ", V " << c.V);
    Trial<T> trial(c);
    std::vector<T> expected_out = trial.out;
    std::vector<float> expected = trial.d_table;
    for (std::int64_t i = 0; i < c.M; ++i) {
      auto row = static_cast<std::size_t>(trial.tokens[static_cast<std::size_t>(i)] * c.C), at = static_cast<std::size_t>(i * c.C);
      for (std::size_t j = 0; j < static_cast<std::size_t>(c.C); ++j) {
        expected_out[at + j] = trial.table[row + j];
        expected[row + j] += static_cast<float>(trial.d_out[at + j]);
      }
    }
    trial.forward();
    EXPECT_EQ(digest(trial.out).hex(), digest(expected_out).hex());
    trial.backward();
    EXPECT_EQ(digest(trial.d_table).hex(), digest(expected).hex());
  }
}
TEST(Embedding, MatchesNaiveLoopsFp32) { check_against_naive_loops<float>(); }
TEST(Embedding, MatchesNaiveLoopsBf16) { check_against_naive_loops<bf16>(); }

// A vocabulary cut into slices: rows of other slices are zeros, so the slices' outputs add up to the whole one, and each slice's gradient
// is its rows of the whole one's.
template <class T>
void check_slices() {
  for (Case c : cases)
    for (std::int64_t slices : {2, 3}) {
      SCOPED_TRACE(::testing::Message() << "M " << c.M << ", C " << c.C << ", V " << c.V << " in " << slices);
      Trial<T> whole(c);
      const std::vector<float> before = whole.d_table;
      whole.forward(), whole.backward();
      std::vector<float> sum(whole.out.size());
      for (std::int64_t k = 0; k < slices; ++k) {
        const std::int64_t first = c.V * k / slices, V = c.V * (k + 1) / slices - first;
        std::vector<T> out = poisoned<T>(c.M * c.C);
        embedding_forward({}, {.out = out.data(),
                               .table = whole.table.data() + first * c.C,
                               .tokens = whole.tokens.data(),
                               .M = c.M,
                               .C = c.C,
                               .dtype = dtype_of<T>(),
                               .V = V,
                               .slice = {.first = first, .whole = false}});
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(out[i]);
        std::vector<float> d_table(before.begin() + first * c.C, before.begin() + (first + V) * c.C);
        EmbeddingBackward p{.d_table = d_table.data(),
                            .d_out = whole.d_out.data(),
                            .tokens = whole.tokens.data(),
                            .M = c.M,
                            .C = c.C,
                            .V = V,
                            .dtype = dtype_of<T>(),
                            .slice = {.first = first, .whole = false}};
        Workspace workspace(embedding_backward_workspace_bytes(p));
        embedding_backward(workspace.context(), p);
        EXPECT_TRUE(std::equal(d_table.begin(), d_table.end(), whole.d_table.begin() + first * c.C)) << "slice " << k;
      }
      for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], static_cast<float>(whole.out[i])) << i;
    }
}
TEST(Embedding, SlicesOfTheVocabularyAddUpFp32) { check_slices<float>(); }
TEST(Embedding, SlicesOfTheVocabularyAddUpBf16) { check_slices<bf16>(); }

// The map is linear in the table: the gradient of dot(d_out, out) by a step of 1 on each entry is exact up to fp32 sums.
TEST(Embedding, BackwardIsTheGradientOfForward) {
  Trial<float> trial({31, 6, 9});
  std::fill(trial.d_table.begin(), trial.d_table.end(), 0.0f);
  trial.backward();
  std::vector<double> expected = finite_differences(doubles(trial.table), [&](const std::vector<double>& table) {
    double sum = 0;
    for (std::size_t i = 0; i < 31 * 6; ++i) {
      sum += static_cast<double>(trial.d_out[i]) * table[static_cast<std::size_t>(trial.tokens[i / 6]) * 6 + i % 6];
    }
    return sum;
  });
  EXPECT_LT(relative_error(trial.d_table, expected), 1e-6);
}

TEST(Embedding, RefusesTokensOutsideTheVocabulary) {
  for (std::int32_t bad : {-1, 5}) {
    Trial<float> trial({77, 48, 5});
    trial.tokens[33] = bad;
    EXPECT_THROW(trial.backward(), Error);
  }
}

TEST(Embedding, SameBitsForAnyThreadCount) {
  expect_same_bits([] {
    Trial<float> trial({3000, 300, 257});
    Trial<bf16> half({900, 49, 2000});
    trial.forward(), half.forward();
    trial.backward(), half.backward();
    return digest(trial.out, trial.d_table, half.out, half.d_table);
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::embedding_test
