// Blocks of attention on a GPU (or in the emulator) against the host's on the same inputs, and what merges them to the host's bits.
#include "kernels/attention/attention_sizes.hpp"
#include "validation/kernels/attention_runs.hpp"
#include "validation/kernels/ring_attention_cases.hpp"

namespace tessera::kernels::ring_attention_cuda_test {
namespace {
using namespace testing;

class RingAttentionCuda : public OnDevice {};

void run_on_host(const AttentionBlock& b, BlockTensors& x) {
  Workspace forward(host::attention_block_forward_workspace_bytes(b)), backward(host::attention_block_backward_workspace_bytes(b));
  host::attention_block_forward(forward.context(), x.forward(b));
  x.set_whole_lse();
  host::attention_block_backward(backward.context(), x.backward(b));
}

std::vector<std::byte> shifted(const Tensor& t, std::size_t offset) {
  std::vector<std::byte> bytes(offset, std::byte{0});
  bytes.insert(bytes.end(), t.bytes().begin(), t.bytes().end());
  return bytes;
}

/// Inputs lie `offset` bytes after a multiple of 256. The backward pass reads the same lse as the host's.
BlockTensors run_on_device(const AttentionBlock& b, const BlockTensors& x, std::size_t offset = 0) {
  BlockTensors r(b.shape);
  DeviceBytes qkv(shifted(x.qkv, offset)), kv(shifted(x.kv, offset)), d_out(shifted(x.d_out, offset));
  DeviceBytes whole_out(x.whole_out.bytes()), whole_lse(x.whole_lse.bytes());
  DeviceBytes out(x.out.bytes().size()), lse(x.lse.bytes().size()), d_q(x.d_q.bytes().size()), d_kv(x.d_kv.bytes().size());
  DeviceBytes forward(cuda::attention_block_forward_workspace_bytes(b)), backward(cuda::attention_block_backward_workspace_bytes(b));
  DeviceArray<std::int32_t> starts_there(x.starts);
  const std::int32_t* starts = x.starts.empty() ? nullptr : starts_there.data();
  cuda::attention_block_forward(forward.context(), {.out = out.data(),
                                                    .lse = lse.floats(),
                                                    .qkv = block_rows(qkv.data() + offset, kv.data() + offset, b.shape),
                                                    .block = b,
                                                    .document_starts = starts});
  cuda::attention_block_backward(backward.context(), {.d_qkv = block_gradients(d_q.data(), d_kv.data(), b.shape),
                                                      .d_out = d_out.data() + offset,
                                                      .qkv = block_rows(qkv.data() + offset, kv.data() + offset, b.shape),
                                                      .out = whole_out.data(),
                                                      .lse = whole_lse.floats(),
                                                      .block = b,
                                                      .document_starts = starts});
  fetch(r.out, out), fetch(r.lse, lse), fetch(r.d_q, d_q), fetch(r.d_kv, d_kv);
  return r;
}

void expect_close(const AttentionBlock& b, const BlockTensors& got, const BlockTensors& want) {
  SCOPED_TRACE(name_of(b));
  const double allowed = tolerance(b.shape.dtype);
  EXPECT_LT(written_error(got.out, want.out.doubles()), allowed);
  EXPECT_LT(written_error(got.lse, want.lse.doubles()), 1e-5);
  EXPECT_LT(written_error(got.d_q, want.d_q.doubles()), allowed);
  EXPECT_LT(written_error(got.d_kv, want.d_kv.doubles()), allowed);
}

Hash128 digest_of(const AttentionBlock& b, const BlockTensors& x) {
  const BlockTensors r = run_on_device(b, x);
  Hasher h;
  for (const Tensor* t : {&r.out, &r.lse, &r.d_q, &r.d_kv}) h.update(t->data(), t->bytes().size());
  return h.digest();
}

void compare_blocks(const std::vector<AttentionBlock>& all) {
  for (const AttentionBlock& b : all) {
    BlockTensors x(b.shape);
    run_on_host(b, x);
    expect_close(b, run_on_device(b, x), x);
  }
}

/// Blocks of documents that are drawn, and of documents of which nobody sees any keys, or one query a few.
void compare_documents(const std::vector<AttentionBlock>& all) {
  for (const AttentionBlock& b : all) {
    BlockTensors x(b.shape);
    x.draw_documents(b, 5);
    run_on_host(b, x);
    expect_close(b, run_on_device(b, x), x);
  }
  for (AttentionBlock b : all) {
    if (b.shape.window > 0) continue;
    BlockTensors x(b.shape);
    for (std::int64_t i = 0; i < b.shape.B * b.shape.T; ++i) x.starts.push_back(static_cast<std::int32_t>(i % b.shape.T));
    x.starts[static_cast<std::size_t>(b.queries.first)] = static_cast<std::int32_t>(b.queries.first - 2);
    run_on_host(b, x);
    expect_close(b, run_on_device(b, x), x);
    break;
  }
}

std::vector<AttentionBlock> some_in_the_emulator(std::vector<AttentionBlock> all) {
  if (watches_races()) return {all[5], all[7]};
  return DeviceSample().some(all, 6);
}

TEST_F(RingAttentionCuda, BlocksMatchTheHostInFp32) { compare_blocks(some_in_the_emulator(ring_attention_cases(DType::f32))); }
TEST_F(RingAttentionCuda, BlocksMatchTheHostInBf16) { compare_blocks(some_in_the_emulator(ring_attention_cases(DType::bf16))); }

TEST_F(RingAttentionCuda, BlocksMatchTheHostInFp16) {
  std::vector<AttentionBlock> all = ring_attention_cases(DType::f16);
  all.resize(8);  // one of each kernel
  if (!watches_races()) compare_blocks(all);
}

TEST_F(RingAttentionCuda, BlocksWithScalesAndCapsMatchTheHost) {
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    if (!watches_races() || t == DType::bf16) compare_blocks(DeviceSample().some(ring_attention_score_cases(t), 3));
}

TEST_F(RingAttentionCuda, BlocksWithWindowsMatchTheHost) {
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    if (!watches_races() || t == DType::bf16)
      compare_blocks(DeviceSample().some(ring_attention_window_cases(t), t == DType::bf16 && !watches_races() ? 4 : 2));
}

TEST_F(RingAttentionCuda, BlocksOfDocumentsMatchTheHost) {
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    if (!watches_races() || t == DType::bf16)
      compare_documents(DeviceSample().some(ring_attention_document_cases(t), t == DType::bf16 && !watches_races() ? 5 : 2));
}

/// Rows of a tile beyond the keys have scores of 0: far above those here, and with the first size their powers would overflow.
void compare_low_scores(DType t, std::int64_t D, float softcap) {
  const AttentionBlock b{{.B = 1, .T = 66, .H = 1, .G = 1, .D = D, .dtype = t, .softcap = softcap}, {0, 66}, {0, 33}};
  for (const double size : {9.7, 20.0}) {
    BlockTensors x(b.shape);
    x.set_low_scores(b.shape, size * std::pow(static_cast<double>(D), 0.25));
    run_on_host(b, x);
    EXPECT_LT(x.lse.get(0), -80);
    const BlockTensors got = run_on_device(b, x);
    EXPECT_LT(written_error(got.out, x.out.doubles()), 10 * tolerance(t));
    EXPECT_LT(written_error(got.d_q, x.d_q.doubles()), t == DType::f32 ? 1e-3 : 1e-1);
    EXPECT_LT(written_error(got.d_kv, x.d_kv.doubles()), t == DType::f32 ? 1e-3 : 1e-1);
  }
}
TEST_F(RingAttentionCuda, ScoresFarBelowZero) {
  for (DType t : {DType::f32, DType::bf16})
    for (std::int64_t D : {16, 64})
      for (const float softcap : {0.f, 200.f}) compare_low_scores(t, D, softcap);
}

TEST_F(RingAttentionCuda, OperandsThatAreNotAlignedTo16Bytes) {
  for (DType t : {DType::f32, DType::bf16}) {
    const AttentionBlock b{{.B = 1, .T = 70, .H = 2, .G = 1, .D = 64, .dtype = t}, {0, 70}, {0, 35}};
    BlockTensors x(b.shape);
    run_on_host(b, x);
    expect_close(b, run_on_device(b, x, 4), x);
  }
}

TEST_F(RingAttentionCuda, BlocksHaveTheSameBitsTwice) {
  if (watches_races()) return;  // in kernels that others have run
  for (DType t : {DType::f32, DType::bf16}) {
    const AttentionBlock b{{.B = 1, .T = 200, .H = 2, .G = 1, .D = 64, .dtype = t}, {100, 100}, {0, 200}};
    BlockTensors x(b.shape);
    run_on_host(b, x);
    expect_same_bits_on_device([&] { return digest_of(b, x); });
  }
}

class RingAttentionOnHopper : public OnHopper {};

TEST_F(RingAttentionOnHopper, BlocksMatchTheHost) {
  std::vector<AttentionBlock> all;
  for (const AttentionBlock& b : ring_attention_cases(DType::bf16)) {
    if (cuda::warpgroup_head_dim(b.shape.D)) all.push_back(b);
  }
  compare_blocks(some_in_the_emulator(all));
}

TEST_F(RingAttentionOnHopper, BlocksWithScalesAndCapsMatchTheHost) {
  std::vector<AttentionBlock> all = ring_attention_score_cases(DType::bf16);
  std::erase_if(all, [](const AttentionBlock& b) { return !cuda::warpgroup_head_dim(b.shape.D); });
  compare_blocks(DeviceSample().some(all, 2));
}

TEST_F(RingAttentionOnHopper, BlocksWithWindowsMatchTheHost) {
  std::vector<AttentionBlock> all = ring_attention_window_cases(DType::bf16);
  std::erase_if(all, [](const AttentionBlock& b) { return !cuda::warpgroup_head_dim(b.shape.D); });
  compare_blocks(DeviceSample().some(all, watches_races() ? 1 : 3));
}

TEST_F(RingAttentionOnHopper, BlocksOfDocumentsMatchTheHost) {
  std::vector<AttentionBlock> all = ring_attention_document_cases(DType::bf16);
  std::erase_if(all, [](const AttentionBlock& b) { return !cuda::warpgroup_head_dim(b.shape.D); });
  compare_documents(DeviceSample().some(all, watches_races() ? 2 : 5));
}

TEST_F(RingAttentionOnHopper, ScoresFarBelowZero) {
  for (const float softcap : {0.f, 200.f}) compare_low_scores(DType::bf16, 64, softcap);
}

TEST_F(RingAttentionOnHopper, BlocksHaveTheSameBitsTwice) {
  if (watches_races()) return;  // in kernels that others have run
  const AttentionBlock b{{.B = 1, .T = 200, .H = 2, .G = 1, .D = 64, .dtype = DType::bf16}, {100, 100}, {0, 200}};
  BlockTensors x(b.shape);
  run_on_host(b, x);
  expect_same_bits_on_device([&] { return digest_of(b, x); });
}

struct Bits {
  std::vector<float> sum, lse;
  bool operator==(const Bits& o) const { return digest(sum, lse) == digest(o.sum, o.lse); }
};

template <class T>
void compare_merge(const AttentionShape& s, AttentionRows rows, std::int64_t shift) {
  const std::int64_t n = s.B * s.T * s.H * s.D, terms = s.B * s.H * s.T;
  const auto out = random_values<T>(n, 1);
  const auto block_lse = random_values<float>(terms, 2, 30);
  Bits want{random_values<float>(n, 3), random_values<float>(terms, 4, 30)};
  MergeBlock p{.block_out = out.data(), .block_lse = block_lse.data(), .queries = rows, .shape = s};
  DeviceArray<float> sum(want.sum, shift), lse(want.lse, shift), device_block_lse(block_lse, shift);
  DeviceArray<T> device_out(out, shift);
  p.sum = want.sum.data(), p.lse = want.lse.data();
  host::merge_block({}, p);
  p.sum = sum.data(), p.lse = lse.data(), p.block_out = device_out.data(), p.block_lse = device_block_lse.data();
  cuda::merge_block({}, p);
  EXPECT_EQ((Bits{sum.host(), lse.host()}), want) << "B" << s.B << " T" << s.T << " H" << s.H << " D" << s.D << " shift " << shift;
}

TEST_F(RingAttentionCuda, MergeHasTheBitsOfTheHost) {
  const AttentionShape shapes[] = {{.B = 1, .T = 1, .H = 1, .G = 1, .D = 2},
                                   {.B = 2, .T = 45, .H = 19, .G = 1, .D = 22},
                                   {.B = 2, .T = 33, .H = 4, .G = 2, .D = 64},
                                   {.B = 1, .T = 34, .H = 3, .G = 1, .D = 192},
                                   {.B = 1, .T = 9, .H = 2, .G = 1, .D = 256}};
  for (AttentionShape s : shapes)
    for (const std::int64_t shift : {0, 1}) {
      s.dtype = DType::f32;
      compare_merge<float>(s, {0, s.T}, shift);
      compare_merge<float>(s, {s.T / 2, s.T - s.T / 2}, shift);
      s.dtype = DType::bf16;
      compare_merge<bf16>(s, {s.T / 2, s.T - s.T / 2}, shift);
      s.dtype = DType::f16;
      compare_merge<f16>(s, {s.T / 2, s.T - s.T / 2}, shift);
    }
}

template <class T>
void compare_add(std::int64_t B, std::int64_t tokens, std::int64_t W, AttentionRows rows, bool first, std::int64_t shift) {
  const auto block = random_values<T>(B * tokens * W, 1);
  auto want = first ? poisoned<float>(B * tokens * W) : random_values<float>(B * tokens * W, 2);
  DeviceArray<float> sum(want, shift);
  DeviceArray<T> device_block(block, shift);
  AddBlockGradient p{.sum = want.data(), .block = block.data(), .B = B, .T = tokens, .W = W, .rows = rows, .first = first};
  p.dtype = dtype_of<T>();
  host::add_block_gradient({}, p);
  p.sum = sum.data(), p.block = device_block.data();
  cuda::add_block_gradient({}, p);
  EXPECT_EQ(digest(sum.host()).hex(), digest(want).hex()) << B << " x " << tokens << " x " << W << " from " << rows.first;
  for (float x : want) ASSERT_FALSE(std::isnan(x));
}

TEST_F(RingAttentionCuda, GradientsAreAddedAsOnTheHost) {
  for (const bool first : {false, true})
    for (const std::int64_t shift : {0, 1})
      for (const std::int64_t W : {2, 24, 522}) {
        compare_add<float>(2, 31, W, {0, 15}, first, shift);
        compare_add<float>(1, 6, W, {0, 6}, first, shift);
        compare_add<bf16>(2, 31, W, {15, 16}, first, shift);
        compare_add<f16>(2, 31, W, {15, 16}, first, shift);
      }
}

template <class T>
void compare_gradients(const AttentionShape& s, std::int64_t shift) {
  const std::int64_t rows = s.B * s.T, queries = s.H * s.D, keys = s.kv_width();
  const auto d_qkv = random_values<T>(rows * (queries + keys), 1);
  auto d_q = poisoned<float>(rows * queries), d_kv = poisoned<float>(rows * keys);
  auto back = poisoned<T>(rows * (queries + keys));
  host::begin_gradients({}, {.d_q = d_q.data(), .d_kv = d_kv.data(), .d_qkv = packed_qkv(d_qkv.data(), s), .shape = s});
  host::end_gradients({}, {.d_qkv = packed_qkv(back.data(), s), .d_q = d_q.data(), .d_kv = d_kv.data(), .shape = s});
  EXPECT_EQ(digest(back).hex(), digest(d_qkv).hex()) << "there and back on the host";
  DeviceArray<T> from(d_qkv, shift), to(rows * (queries + keys), shift);
  DeviceArray<float> device_q(rows * queries, shift), device_kv(rows * keys, shift);
  cuda::begin_gradients({}, {.d_q = device_q.data(), .d_kv = device_kv.data(), .d_qkv = packed_qkv(from.data(), s), .shape = s});
  cuda::end_gradients({}, {.d_qkv = packed_qkv(to.data(), s), .d_q = device_q.data(), .d_kv = device_kv.data(), .shape = s});
  EXPECT_EQ(digest(device_q.host(), device_kv.host()).hex(), digest(d_q, d_kv).hex());
  EXPECT_EQ(digest(to.host()).hex(), digest(d_qkv).hex());
}

TEST_F(RingAttentionCuda, GradientsBeginAndEndAsOnTheHost) {
  for (const std::int64_t shift : {0, 1})
    for (AttentionShape s :
         {AttentionShape{.B = 2, .T = 5, .H = 3, .G = 1, .D = 6}, AttentionShape{.B = 1, .T = 40, .H = 4, .G = 2, .D = 64},
          AttentionShape{.B = 1, .T = 3, .H = 7, .G = 7, .D = 2}, AttentionShape{.B = 2, .T = 9, .H = 4, .G = 2, .D = 24, .Dv = 16},
          AttentionShape{.B = 1, .T = 5, .H = 2, .G = 1, .D = 6, .Dv = 10}}) {
      s.dtype = DType::f32;
      compare_gradients<float>(s, shift);
      s.dtype = DType::bf16;
      compare_gradients<bf16>(s, shift);
      s.dtype = DType::f16;
      compare_gradients<f16>(s, shift);
    }
}

template <class T>
void compare_copies(AttentionShape s) {
  s.dtype = dtype_of<T>();
  const std::int64_t rows = s.B * s.T, queries = s.H * s.D, keys = s.kv_width();
  const auto qkv = random_values<T>(rows * (queries + keys), 1), out = random_values<T>(rows * queries, 2);
  DeviceArray<T> device_qkv(qkv), kv(rows * keys), from(out), to(rows * queries);
  DeviceArray<float> sum(rows * queries);
  const Context context{.workspace = {}, .backend = Backend::cuda};
  pack_keys(context, kv.data(), packed_qkv(device_qkv.data(), s), s);
  begin_merge(context, sum.data(), from.data(), s);
  end_merge(context, to.data(), sum.data(), s);
  const std::vector<T> packed = kv.host();
  for (std::int64_t i = 0; i < rows * keys; ++i) {
    const std::size_t in_qkv = static_cast<std::size_t>(i / keys * (queries + keys) + queries + i % keys);
    ASSERT_EQ(static_cast<float>(packed[static_cast<std::size_t>(i)]), static_cast<float>(qkv[in_qkv])) << i;
  }
  EXPECT_EQ(digest(to.host()).hex(), digest(out).hex());
}

TEST_F(RingAttentionCuda, KeysArePackedAndSumsBeginAndEnd) {
  compare_copies<float>({.B = 2, .T = 5, .H = 4, .G = 2, .D = 6});
  compare_copies<bf16>({.B = 2, .T = 5, .H = 4, .G = 2, .D = 6});
  compare_copies<f16>({.B = 2, .T = 5, .H = 4, .G = 2, .D = 6});
}

}  // namespace
}  // namespace tessera::kernels::ring_attention_cuda_test
