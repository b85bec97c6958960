#include "base/backend.hpp"
#include "base/check.hpp"
#include "device_array.hpp"
#include "embedding_cases.hpp"

namespace tessera::kernels::testing::embedding_cuda_test {
namespace {

class EmbeddingCuda : public OnDevice {};

template <class T>
void check_forward(const EmbeddingCase& c, std::int64_t shift) {
  const EmbeddingInputs<T> in(c);
  auto expected = poisoned<T>(c.M * c.C);
  EmbeddingForward p = in.forward_arguments(expected.data());
  host::embedding_forward({}, p);
  DeviceArray<T> out(c.M * c.C, shift), device_table(in.table, shift);
  DeviceArray<std::int32_t> device_tokens(in.tokens);
  p.out = out.data(), p.table = device_table.data(), p.tokens = device_tokens.data();
  cuda::embedding_forward({}, p);
  EXPECT_EQ(digest(out.host()), digest(expected)) << c;
}
TEST_F(EmbeddingCuda, ForwardCopiesOrScalesRows) {
  for (const EmbeddingCase& c : embedding_cases) {
    for (std::int64_t shift : {0, 1}) check_forward<float>(c, shift), check_forward<bf16>(c, shift), check_forward<f16>(c, shift);
  }
}

template <class T>
Hash128 backward(const EmbeddingCase& c, std::int64_t shift, bool on_host) {
  EmbeddingInputs<T> in(c);
  EmbeddingBackward p = in.backward_arguments();
  if (on_host) {
    Workspace workspace(host::embedding_backward_workspace_bytes(p));
    host::embedding_backward(workspace.context(), p);
    return digest(in.d_table);
  }
  DeviceArray<float> device_table(in.d_table, shift);
  DeviceArray<T> device_d_out(in.d_out, shift);
  DeviceArray<std::int32_t> device_tokens(in.tokens);
  DeviceBytes workspace(cuda::embedding_backward_workspace_bytes(p));
  p.d_table = device_table.data(), p.d_out = device_d_out.data(), p.tokens = device_tokens.data();
  cuda::embedding_backward(workspace.context(), p);
  return digest(device_table.host());
}
TEST_F(EmbeddingCuda, BackwardHasTheBitsOfTheHost) {
  for (const EmbeddingCase& c : embedding_cases) {
    SCOPED_TRACE(::testing::Message() << c);
    for (std::int64_t shift : {0, 1}) {
      EXPECT_EQ(backward<float>(c, shift, false).hex(), backward<float>(c, 0, true).hex());
      EXPECT_EQ(backward<bf16>(c, shift, false).hex(), backward<bf16>(c, 0, true).hex());
    }
  }
}

TEST_F(EmbeddingCuda, SameBitsInEveryOrder) {
  for (const EmbeddingCase& c : {EmbeddingCase{2500, 8, 70}, {600, 12, 257, 0.9}})
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
