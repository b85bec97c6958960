#include "base/check.hpp"
#include "device_array.hpp"
#include "kernels/embedding/embedding.hpp"

namespace tessera::kernels::testing::embedding_cuda_test {
namespace {

class EmbeddingCuda : public OnDevice {};

struct Case {
  std::int64_t M, C, V;
  double same = 0;                   ///< share of the tokens that are one token
  std::int64_t first = 0, part = 0;  ///< of a table that has a slice of the vocabulary: its first token, and how many
  std::int64_t rows() const { return part > 0 ? part : V; }
  VocabularySlice slice() const { return {.first = first, .whole = part == 0}; }
};
// One token and many, a vocabulary of one to three digits, several tiles of the sort, tokens that occur hundreds of times.
const Case cases[] = {{1, 1, 1},
                      {77, 48, 13},
                      {77, 1, 1013},
                      {300, 5, 1},
                      {100, 1013, 300},
                      {70, 520, 256},
                      {2500, 8, 70},
                      {4200, 24, 100000},
                      {600, 12, 257, 0.9},
                      {600, 12, 257, 0.5, 100, 128},
                      {900, 40, 1013, 0, 757, 256}};

std::vector<std::int32_t> random_tokens(const Case& c) {
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
void check_forward(const Case& c, std::int64_t shift) {
  const auto table = random_values<T>(c.rows() * c.C, 1);
  const auto tokens = random_tokens(c);
  auto expected = poisoned<T>(c.M * c.C);
  EmbeddingForward p{.out = expected.data(),
                     .table = table.data(),
                     .tokens = tokens.data(),
                     .M = c.M,
                     .C = c.C,
                     .dtype = dtype_of<T>(),
                     .V = c.rows(),
                     .slice = c.slice()};
  host::embedding_forward({}, p);
  DeviceArray<T> out(c.M * c.C, shift), device_table(table, shift);
  DeviceArray<std::int32_t> device_tokens(tokens);
  p.out = out.data(), p.table = device_table.data(), p.tokens = device_tokens.data();
  cuda::embedding_forward({}, p);
  EXPECT_EQ(digest(out.host()), digest(expected)) << c.M << " tokens of " << c.C;
}
TEST_F(EmbeddingCuda, ForwardCopiesRows) {
  for (const Case& c : cases) {
    for (std::int64_t shift : {0, 1}) check_forward<float>(c, shift), check_forward<bf16>(c, shift);
  }
}

template <class T>
Hash128 backward(const Case& c, std::int64_t shift, bool on_host) {
  auto d_table = random_values<float>(c.rows() * c.C, 1);
  const auto d_out = random_values<T>(c.M * c.C, 2);
  const auto tokens = random_tokens(c);
  EmbeddingBackward p{.d_table = d_table.data(),
                      .d_out = d_out.data(),
                      .tokens = tokens.data(),
                      .M = c.M,
                      .C = c.C,
                      .V = c.rows(),
                      .dtype = dtype_of<T>(),
                      .slice = c.slice()};
  if (on_host) {
    Workspace workspace(host::embedding_backward_workspace_bytes(p));
    host::embedding_backward(workspace.context(), p);
    return digest(d_table);
  }
  DeviceArray<float> device_table(d_table, shift);
  DeviceArray<T> device_d_out(d_out, shift);
  DeviceArray<std::int32_t> device_tokens(tokens);
  DeviceBytes workspace(cuda::embedding_backward_workspace_bytes(p));
  p.d_table = device_table.data(), p.d_out = device_d_out.data(), p.tokens = device_tokens.data();
  cuda::embedding_backward(workspace.context(), p);
  return digest(device_table.host());
}
TEST_F(EmbeddingCuda, BackwardHasTheBitsOfTheHost) {
  for (const Case& c : cases) {
    SCOPED_TRACE(::testing::Message() << c.M << " tokens of " << c.C << ", vocabulary " << c.V);
    for (std::int64_t shift : {0, 1}) {
      EXPECT_EQ(backward<float>(c, shift, false).hex(), backward<float>(c, 0, true).hex());
      EXPECT_EQ(backward<bf16>(c, shift, false).hex(), backward<bf16>(c, 0, true).hex());
    }
  }
}

TEST_F(EmbeddingCuda, SameBitsInEveryOrder) {
  for (const Case& c : {Case{2500, 8, 70}, Case{600, 12, 257, 0.9}})
    expect_same_bits_on_device([&] { return backward<bf16>(c, 0, false); });
}

TEST_F(EmbeddingCuda, RefusesAShortWorkspace) { EXPECT_THROW(cuda::embedding_backward({}, {.M = 7, .C = 4, .V = 9}), Error); }

#ifdef TESSERA_EMULATED_GPU  // on a GPU a trap ends the process's work on it
TEST_F(EmbeddingCuda, ATokenOutsideTheVocabularyTraps) {
  DeviceArray<std::int32_t> tokens(std::vector<std::int32_t>{3, 9, -1});
  DeviceArray<float> d_table(9 * 4), d_out(3 * 4);
  EmbeddingBackward p{.d_table = d_table.data(), .d_out = d_out.data(), .tokens = tokens.data(), .M = 2, .C = 4, .V = 9};
  DeviceBytes workspace(1 << 16);
  EXPECT_THROW(cuda::embedding_backward(workspace.context(), p), std::logic_error);
  EXPECT_THROW(cuda::embedding_forward({}, {.out = d_out.data(), .table = d_table.data(), .tokens = tokens.data(), .M = 3, .C = 4}),
               std::logic_error);
}
#endif

}  // namespace
}  // namespace tessera::kernels::testing::embedding_cuda_test
