// Workspace of GPU kernels, as every build plans it: a table that builds without CUDA and builds with it must both meet. That kernels stay
// inside what they ask for is tested beside each of them.
#include <gtest/gtest.h>

#include "kernels/activation/activation.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/embedding/embedding.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/layer_norm/layer_norm.hpp"
#include "kernels/qk_norm_rope/qk_norm_rope.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"
#include "kernels/sums/sums.hpp"

namespace tessera::kernels::sizes_test {
namespace {

constexpr Backend gpu = Backend::cuda;

std::size_t attention(AttentionShape shape, AttentionPath path, bool backward) {
  shape.path = path;
  return backward ? attention_backward_workspace_bytes(shape, gpu) : attention_forward_workspace_bytes(shape, gpu);
}

TEST(SizesOnGpus, RowSums) {
  EXPECT_EQ(rmsnorm_backward_workspace_bytes({.rows = 8192, .C = 8192, .dtype = DType::bf16}, gpu), 8650752u);
  EXPECT_EQ(rmsnorm_backward_workspace_bytes({.rows = 1000, .C = 768, .dtype = DType::f32}, gpu), 384000u);
  EXPECT_EQ(rmsnorm_backward_workspace_bytes({.rows = 5, .C = 12, .dtype = DType::bf16}, gpu), 48u);
  EXPECT_EQ(layer_norm_backward_workspace_bytes({.rows = 8192, .C = 8192, .dtype = DType::bf16}, gpu), 17301504u);
  EXPECT_EQ(layer_norm_backward_workspace_bytes({.rows = 5, .C = 12, .dtype = DType::bf16}, gpu), 96u);
  EXPECT_EQ(activation_backward_workspace_bytes({.M = 8192, .F = 21504, .dtype = DType::bf16, .activation = PlainActivation::xielu}, gpu),
            4224u);
  EXPECT_EQ(activation_backward_workspace_bytes({.M = 5, .F = 12, .activation = PlainActivation::xielu}, gpu), 8u);
  EXPECT_EQ(activation_backward_workspace_bytes({.M = 5, .F = 12, .activation = PlainActivation::gelu}, gpu), 0u);
  EXPECT_EQ(column_sums_workspace_bytes({.M = 8192, .N = 10240}, gpu), 5242880u);
  EXPECT_EQ(column_sums_workspace_bytes({.M = 33, .N = 7}, gpu), 28u);
  EXPECT_EQ(qk_norm_rope_backward_workspace_bytes({.M = 8192, .T = 8192, .H = 64, .G = 8, .D = 128, .dtype = DType::bf16}, gpu), 202752u);
  EXPECT_EQ(qk_norm_rope_backward_workspace_bytes({.M = 66, .T = 33, .H = 4, .G = 2, .D = 16, .dtype = DType::f32}, gpu), 128u);
  EXPECT_EQ(sum_of_squares_workspace_bytes({.n = 1 << 20, .dtype = DType::i64}, gpu), 0u);
}

TEST(SizesOnGpus, Attention) {
  const AttentionShape llama{.B = 1, .T = 8192, .H = 64, .G = 8, .D = 128, .dtype = DType::bf16},
      small{.B = 2, .T = 100, .H = 4, .G = 4, .D = 32, .dtype = DType::f32};
  EXPECT_EQ(attention(llama, AttentionPath::native, false), 0u);
  EXPECT_EQ(attention(llama, AttentionPath::native, true), 541065216u);
  EXPECT_EQ(attention(llama, AttentionPath::cudnn, false), 256u);
  EXPECT_EQ(attention(llama, AttentionPath::cudnn, true), 807403776u);
  EXPECT_EQ(attention(llama, AttentionPath::fastest, true), 807403776u);
  AttentionShape fixed = llama;
  fixed.deterministic = true;
  EXPECT_EQ(attention(fixed, AttentionPath::cudnn, true), 8860467456u);
  EXPECT_EQ(attention(small, AttentionPath::native, true), 8192u);
  EXPECT_EQ(attention(small, AttentionPath::fastest, true), 8192u) << "fp32 is ours alone";
  EXPECT_EQ(attention_decode_workspace_bytes({.capacity = 8192, .shape = llama}, gpu), 4259840u);
  EXPECT_EQ(attention_decode_workspace_bytes({.capacity = 65, .shape = {.B = 3, .T = 1, .H = 4, .G = 2, .D = 6}}, gpu), 384u);
  AttentionShape windowed = llama;
  windowed.window = 1024;  // it begins in a piece of 64 tokens and ends in the 17th
  EXPECT_EQ(attention_decode_workspace_bytes({.capacity = 1024, .shape = windowed}, gpu), 64u * 17 * 130 * 4);
  EXPECT_EQ(attention_decode_workspace_bytes({.capacity = 512, .shape = windowed}, gpu), 64u * 8 * 130 * 4);
}

TEST(SizesOnGpus, AttentionBlocks) {
  const AttentionShape llama{.B = 1, .T = 8192, .H = 64, .G = 8, .D = 128, .dtype = DType::bf16},
      small{.B = 2, .T = 100, .H = 4, .G = 4, .D = 32, .dtype = DType::f32};
  const AttentionBlock whole{llama, {0, 8192}, {0, 8192}}, lower{llama, {0, 8192}, {0, 4096}}, higher{small, {50, 50}, {0, 100}};
  EXPECT_EQ(attention_block_forward_workspace_bytes(lower, gpu), 0u);
  EXPECT_EQ(attention_block_backward_workspace_bytes(whole, gpu), 541065216u) << "as of the rank's own keys";
  EXPECT_EQ(attention_block_backward_workspace_bytes(lower, gpu), 272629760u);
  EXPECT_EQ(attention_block_backward_workspace_bytes(higher, gpu), 8192u);
}

TEST(SizesOnGpus, ProductsAndEmbedding) {
  EXPECT_EQ(gemm_workspace_bytes({.M = 64, .N = 64, .K = 64}, gpu), 33554432u);
  EXPECT_EQ(gemm_packed_bytes({.M = 64, .N = 64, .K = 64, .b_transposed = true}, gpu), 0u);
  EXPECT_EQ(embedding_backward_workspace_bytes({.M = 8192, .C = 8192, .V = 128256, .dtype = DType::bf16}, gpu), 135168u);
  EXPECT_EQ(embedding_backward_workspace_bytes({.M = 2049, .C = 8, .V = 300, .dtype = DType::f32}, gpu), 34832u);
}

}  // namespace
}  // namespace tessera::kernels::sizes_test
