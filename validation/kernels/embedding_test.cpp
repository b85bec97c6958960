#include "embedding_cases.hpp"

#include "base/check.hpp"

namespace tessera::kernels::testing::embedding_test {
namespace {

/// Those of both backends, and more rows than a thread of the host takes at once.
std::vector<EmbeddingCase> cases() {
  std::vector<EmbeddingCase> all(std::begin(embedding_cases), std::end(embedding_cases));
  all.push_back({3000, 300, 257, 0.5});
  all.push_back({3000, 300, 257, 0.5, 0, 0, 0.1f});
  return all;
}

template <class T>
struct Trial : EmbeddingInputs<T> {
  std::vector<T> out;
  explicit Trial(const EmbeddingCase& c) : EmbeddingInputs<T>(c), out(poisoned<T>(c.M * c.C)) {}
  void forward() { embedding_forward({}, this->forward_arguments(out.data())); }
  void backward() {
    const EmbeddingBackward p = this->backward_arguments();
    Workspace workspace(embedding_backward_workspace_bytes(p));
    embedding_backward(workspace.context(), p);
  }
};

// Both directions are exact in their order of sums, so the naive loop must agree to the bit.
template <class T>
void check_against_naive_loops() {
  for (const EmbeddingCase& c : cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    Trial<T> trial(c);
    std::vector<T> expected_out(trial.out.size(), T(0.0f));  // of tokens of other slices
    std::vector<float> expected = trial.d_table;
    for (std::int64_t i = 0; i < c.M; ++i) {
      const std::int64_t token = trial.tokens[static_cast<std::size_t>(i)] - c.first;
      if (token < 0 || token >= c.rows()) continue;
      const auto row = static_cast<std::size_t>(token * c.C), at = static_cast<std::size_t>(i * c.C);
      for (std::size_t j = 0; j < static_cast<std::size_t>(c.C); ++j) {
        expected_out[at + j] = T(static_cast<float>(trial.table[row + j]) * c.scale);
        expected[row + j] = std::fma(c.scale, static_cast<float>(trial.d_out[at + j]), expected[row + j]);
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
TEST(Embedding, MatchesNaiveLoopsFp16) { check_against_naive_loops<f16>(); }

// A vocabulary cut into slices: rows of other slices are zeros, so the slices' outputs add up to the whole one, and each slice's gradient
// is its rows of the whole one's.
template <class T>
void check_slices() {
  for (const EmbeddingCase& c : cases())
    for (std::int64_t slices : {2, 3}) {
      if (c.part > 0) continue;
      SCOPED_TRACE(::testing::Message() << c << " in " << slices);
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
                               .slice = {.first = first, .whole = false},
                               .scale = c.scale});
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(out[i]);
        std::vector<float> d_table(before.begin() + first * c.C, before.begin() + (first + V) * c.C);
        EmbeddingBackward p{.d_table = d_table.data(),
                            .d_out = whole.d_out.data(),
                            .tokens = whole.tokens.data(),
                            .M = c.M,
                            .C = c.C,
                            .V = V,
                            .dtype = dtype_of<T>(),
                            .slice = {.first = first, .whole = false},
                            .scale = c.scale};
        Workspace workspace(embedding_backward_workspace_bytes(p));
        embedding_backward(workspace.context(), p);
        EXPECT_TRUE(std::equal(d_table.begin(), d_table.end(), whole.d_table.begin() + first * c.C)) << "slice " << k;
      }
      for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], static_cast<float>(whole.out[i])) << i;
    }
}
TEST(Embedding, SlicesOfTheVocabularyAddUpFp32) { check_slices<float>(); }
TEST(Embedding, SlicesOfTheVocabularyAddUpBf16) { check_slices<bf16>(); }
TEST(Embedding, SlicesOfTheVocabularyAddUpFp16) { check_slices<f16>(); }

// The map is linear in the table: the gradient of dot(d_out, out) by a step of 1 on each entry is exact up to fp32 sums.
TEST(Embedding, BackwardIsTheGradientOfForward) {
  Trial<float> trial({31, 6, 9, 0.5, 0, 0, 3.3f});
  std::fill(trial.d_table.begin(), trial.d_table.end(), 0.0f);
  trial.backward();
  std::vector<double> expected = finite_differences(doubles(trial.table), [&](const std::vector<double>& table) {
    double sum = 0;
    for (std::size_t i = 0; i < 31 * 6; ++i) {
      sum += static_cast<double>(trial.d_out[i]) * static_cast<double>(3.3f) *
             table[static_cast<std::size_t>(trial.tokens[i / 6]) * 6 + i % 6];
    }
    return sum;
  });
  EXPECT_LT(relative_error(trial.d_table, expected), 1e-6);
}

TEST(Embedding, RefusesTokensOutsideTheVocabulary) {
  for (std::int32_t bad : {-1, 5}) {
    Trial<float> trial({77, 48, 5, 0.5});
    trial.tokens[33] = bad;
    EXPECT_THROW(trial.backward(), Error);
  }
}

TEST(Embedding, SameBitsForAnyThreadCount) {
  expect_same_bits([] {
    Trial<float> trial({3000, 300, 257, 0.5});
    Trial<bf16> half({900, 49, 2000, 0.5, 0, 0, 0.7f});
    trial.forward(), half.forward();
    trial.backward(), half.backward();
    return digest(trial.out, trial.d_table, half.out, half.d_table);
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::embedding_test
