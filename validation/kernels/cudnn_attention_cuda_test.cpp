// Attention through cuDNN against the host's: the graphs, their operands' places, workspace, the choice between ours and theirs. In the
// emulator a stand-in executes what cudnn-frontend describes.
#include "base/backend.hpp"
#include "kernels/attention/cudnn_attention.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/check.hpp"
#include "kernels/attention/attention_path.hpp"
#include "kernels/attention/native_attention.hpp"
#include "kernels/cuda/kernel_search.hpp"
#include "validation/kernels/attention_runs.hpp"
#ifdef TESSERA_EMULATED_GPU
#include <emulator.hpp>
#endif

namespace tessera::kernels::cudnn_attention_cuda_test {
namespace {
using namespace testing;

AttentionShape shape(std::int64_t B, std::int64_t T, std::int64_t H, std::int64_t G, std::int64_t D) {
  return {.B = B, .T = T, .H = H, .G = G, .D = D, .dtype = DType::bf16, .path = AttentionPath::cudnn};
}

// Only the emulator counts.
#ifdef TESSERA_EMULATED_GPU
constexpr int counts_runs = 1;
std::int64_t cudnn_runs() { return emulator::cudnn_executions(); }
#else
constexpr int counts_runs = 0;
std::int64_t cudnn_runs() { return 0; }
#endif

class CudnnAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_NEEDS_DEVICE();
    if (cuda::cudnn_name().empty()) GTEST_SKIP() << "there is no cuDNN";
  }
};

TEST_F(CudnnAttention, MatchesTheHost) {
  for (AttentionShape s : {shape(2, 77, 4, 4, 64), shape(1, 257, 4, 1, 64), shape(1, 77, 7, 1, 64), shape(1, 130, 7, 1, 128),
                           shape(2, 128, 2, 2, 96), shape(1, 65, 4, 2, 48), shape(1, 300, 2, 2, 128)})
    for (bool deterministic : {false, true}) {
      s.deterministic = deterministic;
      SCOPED_TRACE(deterministic ? "deterministic" : "");
      ASSERT_EQ(cuda::why_not_cudnn(s, cuda::AttentionPass::forward), "");
      ASSERT_EQ(cuda::why_not_cudnn(s, cuda::AttentionPass::backward), "");
      const AttentionOperands x(s);
      expect_close(s, on_device(s, x), on_host(s, x));
    }
}

TEST_F(CudnnAttention, MatchesTheHostInFp16) {
  for (AttentionShape s : {shape(1, 130, 7, 1, 128), shape(2, 77, 4, 4, 64)}) {
    s.dtype = DType::f16;
    ASSERT_EQ(cuda::why_not_cudnn(s, cuda::AttentionPass::backward), "");
    const AttentionOperands x(s);
    const std::int64_t runs = cudnn_runs();
    expect_close(s, on_device(s, x), on_host(s, x));
    EXPECT_EQ(cudnn_runs(), runs + 2 * counts_runs);
  }
}

// One graph for each scale; scores with a cap are ours.
TEST_F(CudnnAttention, TakesAScaleAndNoCap) {
  AttentionShape s = shape(1, 77, 4, 2, 64);
  for (const float scale : {1.f / 16, 0.5f, 0.f}) {
    s.scale = scale;
    const AttentionOperands x(s);
    std::int64_t runs = cudnn_runs();
    expect_close(s, on_device(s, x), on_host(s, x));
    EXPECT_EQ(cudnn_runs(), runs + 2 * counts_runs);
    AttentionShape capped = s;
    capped.softcap = 1;
    runs = cudnn_runs();
    expect_close(capped, on_device(capped, x), on_host(capped, x));
    EXPECT_EQ(cudnn_runs(), runs);
  }
}

// A pass of ours beside one of cuDNN's: they leave each other the same statistics.
TEST_F(CudnnAttention, PassesMixWithOurs) {
  const AttentionShape s = shape(1, 200, 4, 2, 64);
  const AttentionOperands x(s);
  AttentionShape ours = s;
  ours.path = AttentionPath::native;
  expect_close(s, on_device(s, x, 0, ours), on_host(s, x));
  expect_close(s, on_device(ours, x, 0, s), on_host(s, x));
}

TEST_F(CudnnAttention, SameBitsTwiceWhereDeterministic) {
  AttentionShape s = shape(2, 512, 4, 2, 64);
#ifdef TESSERA_EMULATED_GPU
  s.T = 96;
#endif
  s.deterministic = true;
  const AttentionOperands x(s);
  const AttentionResult first = on_device(s, x), second = on_device(s, x);
  EXPECT_TRUE(std::ranges::equal(first.out.bytes(), second.out.bytes()));
  EXPECT_TRUE(std::ranges::equal(first.d_qkv.bytes(), second.d_qkv.bytes()));
}

TEST_F(CudnnAttention, WhatItCannotRunIsRefusedWithTheReason) {
  const auto refused = [](const AttentionShape& s) -> std::string {
    try {
      on_device(s, AttentionOperands(s));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refused(shape(1, 32, 2, 2, 90)).find("multiples of 8, and 90 is none"), std::string::npos);
  AttentionShape fp32 = shape(1, 32, 2, 2, 64);
  fp32.dtype = DType::f32;
  const std::string said = refused(fp32);
  EXPECT_NE(said.find("no attention in fp32"), std::string::npos) << said;
  EXPECT_NE(said.find("Set kernels.attention = \"native\" or \"auto\""), std::string::npos) << said;
}

// Shapes that no other test of this file has met: a choice holds for the life of the process.
TEST_F(CudnnAttention, FastestIsOursUntilASearchHasTimedBoth) {
  AttentionShape s = shape(1, 61, 2, 1, 64);
  s.path = AttentionPath::fastest;
  const AttentionOperands x(s);
  const std::string file = ::testing::TempDir() + fmt::format("attention-{}.json", getpid());
  const auto lines = [] { return cuda::attention_choices().size(); };
  const std::size_t before = lines();
  expect_close(s, on_device(s, x), on_host(s, x));
  EXPECT_EQ(lines(), before) << "nothing is chosen without a search";
  {
    cuda::KernelSearch search(file);
    expect_close(s, on_device(s, x), on_host(s, x));
    EXPECT_EQ(search.searched(), 2) << "forward and backward";
    EXPECT_EQ(lines(), before + 2);
    expect_close(s, on_device(s, x), on_host(s, x));
    EXPECT_EQ(search.searched(), 2) << "a shape is searched once";
    EXPECT_TRUE(search.save());
  }
  for (const std::string& line : cuda::attention_choices()) EXPECT_NE(line.find(" ms"), std::string::npos) << line;
  {
    cuda::KernelSearch search(file);
    const std::string* kept =
        search.find(fmt::format("attention forward, B 1 T 61 H 2 G 1 D 64, ours {}, {}", cuda::native_revision, cuda::cudnn_name()));
    ASSERT_TRUE(kept);
    EXPECT_TRUE(*kept == "cudnn" || *kept == "native") << *kept;
  }
  for (const char* known : {"native", "cudnn"}) {
    AttentionShape other = s;
    other.T = *known == 'n' ? 57 : 58;
    cuda::KernelSearch search(file);
    for (const char* pass : {"forward", "backward"})
      search.keep(fmt::format("attention {}, B 1 T {} H 2 G 1 D 64, ours {}, {}", pass, other.T, cuda::native_revision, cuda::cudnn_name()),
                  known);
    const AttentionOperands y(other);
    const std::int64_t executed = cudnn_runs();
    expect_close(other, on_device(other, y), on_host(other, y));
    EXPECT_EQ(cudnn_runs() - executed, *known == 'n' ? 0 : 2 * counts_runs) << "what an earlier start found is taken";
    EXPECT_EQ(search.searched(), 2) << "those that the test kept";
  }
  {
    AttentionShape other = s;
    other.T = 59;
    cuda::KernelSearch search(file, {.products = true, .attention = false});
    on_device(other, AttentionOperands(other));
    EXPECT_EQ(search.searched(), 0) << "attention was not to be searched";
  }
  unlink(file.c_str());
}

TEST_F(CudnnAttention, FastestIsOursWhereCudnnHasNoSuchAttention) {
  AttentionShape odd = shape(1, 40, 2, 1, 90), fp32 = shape(1, 40, 2, 1, 64);
  fp32.dtype = DType::f32;
  cuda::KernelSearch search(::testing::TempDir() + "attention-none.json");
  for (AttentionShape s : {odd, fp32}) {
    s.path = AttentionPath::fastest;
    const AttentionOperands x(s);
    expect_close(s, on_device(s, x), on_host(s, x));
  }
  EXPECT_EQ(search.searched(), 0);
}

#ifdef TESSERA_EMULATED_GPU
TEST_F(CudnnAttention, ItIsCudnnThatRuns) {
  const AttentionShape s = shape(1, 33, 2, 1, 64);
  const std::int64_t before = emulator::cudnn_executions();
  on_device(s, AttentionOperands(s));
  EXPECT_EQ(emulator::cudnn_executions(), before + 2);
}

TEST_F(CudnnAttention, WithoutTheLibraryFastestIsOurs) {
  AttentionShape s = shape(1, 35, 2, 1, 64);
  const AttentionOperands x(s);
  emulator::hide_cudnn(true);
  EXPECT_EQ(cuda::cudnn_name(), "");
  EXPECT_THROW(on_device(s, x), Error);
  s.path = AttentionPath::fastest;
  {
    cuda::KernelSearch search(::testing::TempDir() + "attention-none.json");
    expect_close(s, on_device(s, x), on_host(s, x));
    EXPECT_EQ(search.searched(), 0);
  }
  emulator::hide_cudnn(false);
  EXPECT_NE(cuda::attention_choices().front().find("libcudnn.so.9 was not found"), std::string::npos);
}
#endif

}  // namespace
}  // namespace tessera::kernels::cudnn_attention_cuda_test
