// Attention on a GPU (or in the emulator) against the host's on the same inputs.
#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "kernels/attention/attention_sizes.hpp"
#include "validation/kernels/attention_runs.hpp"

namespace tessera::kernels::attention_cuda_test {
namespace {
using namespace testing;

TEST(AttentionCuda, MatchesTheHost) {
  TESSERA_NEEDS_DEVICE();
  DeviceSample sample;
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const AttentionShape& s : sample.some(attention_cases(t), 4)) {
      const AttentionOperands x(s);
      expect_close(s, on_device(s, x), on_host(s, x));
    }
}

TEST(AttentionCuda, OperandsThatAreNotAlignedTo16Bytes) {
  TESSERA_NEEDS_DEVICE();
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (std::int64_t D : {32, 64}) {
      const AttentionShape s{.B = 1, .T = 70, .H = 2, .G = 1, .D = D, .dtype = t};
      const AttentionOperands x(s);
      expect_close(s, on_device(s, x, 4), on_host(s, x));
    }
}

TEST(AttentionCuda, LargeScoresDoNotOverflow) {
  TESSERA_NEEDS_DEVICE();
  const AttentionShape s{.B = 1, .T = 150, .H = 2, .G = 1, .D = 64, .dtype = DType::bf16};
  const AttentionOperands x(s, 30);
  const AttentionResult got = on_device(s, x), want = on_host(s, x);
  EXPECT_LT(relative_error(got.out.doubles(), want.out.doubles()), 1e-2);
  EXPECT_LT(relative_error(got.lse.doubles(), want.lse.doubles()), 1e-5);
}

void expect_large_scores_below_the_cap(DType t) {
  const AttentionShape s{.B = 1, .T = 150, .H = 2, .G = 1, .D = 64, .dtype = t, .softcap = 2};
  const AttentionOperands x(s, 30);
  const AttentionResult got = on_device(s, x), want = on_host(s, x);
  EXPECT_LT(relative_error(got.out.doubles(), want.out.doubles()), tolerance(t));
  EXPECT_LT(relative_error(got.lse.doubles(), want.lse.doubles()), 1e-5);
}

TEST(AttentionCuda, LargeScoresStayBelowTheCap) {
  TESSERA_NEEDS_DEVICE();
  if (watches_races()) return;  // other numbers are no other races
  for (DType t : {DType::f32, DType::bf16}) expect_large_scores_below_the_cap(t);
}

TEST(AttentionCuda, TinyScoresStayBelowTheCap) {
  TESSERA_NEEDS_DEVICE();
  if (watches_races()) return;
  for (const float scale : {0x1p-20f, 0x1p-7f}) {
    const AttentionShape s = attention_tiny_scores(scale);
    const AttentionOperands x(s);
    const std::vector<double> got = on_device(s, x).lse.doubles(), want = on_host(s, x).lse.doubles();
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 3e-7);
  }
}

TEST(AttentionCuda, NanIsNotSwallowed) {
  TESSERA_NEEDS_DEVICE();
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const float softcap : {0.f, 5.f}) {
      if (watches_races() && softcap > 0) continue;
      const AttentionShape s{.B = 1, .T = 150, .H = 1, .G = 1, .D = 32, .dtype = t, .softcap = softcap};
      AttentionOperands x(s);
      x.qkv.set(20 * 96 + 3, std::nan(""));        // a query: its own row alone
      x.qkv.set(130 * 96 + 32 + 2, std::nan(""));  // a key: its row and those after
      const AttentionResult got = on_device(s, x);
      for (std::int64_t i = 0; i < s.T; ++i) EXPECT_EQ(std::isnan(got.out.get(i * 32)), i == 20 || i >= 130) << i;
    }
}

TEST(AttentionCuda, DocumentsMatchTheHost) {
  TESSERA_NEEDS_DEVICE();
  DeviceSample sample;
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const AttentionShape& s : sample.some(attention_document_cases(t), 4)) {
      AttentionOperands x(s);
      x.starts = random_documents(s.B, s.T, 5);
      const AttentionResult got = on_device(s, x);
      expect_close(s, got, on_host(s, x));
      if (watches_races()) continue;
      const AttentionResult second = again([&] { return on_device(s, x); });
      EXPECT_EQ(got.out.bytes(), second.out.bytes());
      EXPECT_EQ(got.d_qkv.bytes(), second.d_qkv.bytes());
    }
}

TEST(AttentionCuda, DocumentsAtEdgesOfTilesMatchTheHost) {
  TESSERA_NEEDS_DEVICE();
  DeviceSample sample;
  if (watches_races()) return;  // other lengths are no other races
  for (DType t : {DType::f32, DType::bf16})
    for (const auto& [s, starts] : sample.some(attention_edges(t), 2)) {
      AttentionOperands x(s);
      x.starts = starts;
      expect_close(s, on_device(s, x), on_host(s, x));
    }
}

TEST(AttentionCuda, WindowsMatchTheHost) {
  TESSERA_NEEDS_DEVICE();
  DeviceSample sample;
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const AttentionShape& s : sample.some(attention_window_cases(t), 3)) {
      AttentionOperands x(s);
      expect_close(s, on_device(s, x), on_host(s, x));
      if (watches_races()) continue;
      x.starts = random_documents(s.B, s.T, 5);
      expect_close(s, on_device(s, x), on_host(s, x));
    }
}

void expect_same_bits(const AttentionShape& s, const AttentionResult& one, const AttentionResult& other) {
  SCOPED_TRACE(name_of(s));
  EXPECT_EQ(one.out.bytes(), other.out.bytes());
  EXPECT_EQ(one.lse.bytes(), other.lse.bytes());
  EXPECT_EQ(one.d_qkv.bytes(), other.d_qkv.bytes());
}

/// Also of documents, and over a second run in which threads come in another order.
void expect_scores_as_on_the_host(const AttentionShape& s) {
  AttentionOperands x(s);
  const AttentionResult got = on_device(s, x);
  expect_close(s, got, on_host(s, x));
  if (watches_races()) return;
  expect_same_bits(s, again([&] { return on_device(s, x); }), got);
  x.starts = random_documents(s.B, s.T, 5);
  expect_close(s, on_device(s, x), on_host(s, x));
}

TEST(AttentionCuda, ScalesAndCapsMatchTheHost) {
  TESSERA_NEEDS_DEVICE();
  DeviceSample sample;
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const AttentionShape& s : sample.some(attention_score_cases(t), watches_races() ? 1 : 3)) expect_scores_as_on_the_host(s);
}

void expect_that_a_window_has_the_bits_of_its_documents(const AttentionShape& windowed) {
  AttentionOperands x(windowed);
  const AttentionResult one = on_device(windowed, x);
  AttentionShape s = windowed;
  s.window = 0;
  x.starts = documents_of_windows(windowed);
  expect_same_bits(windowed, on_device(s, x), one);
}

TEST(AttentionCuda, WindowHasTheBitsOfItsDocuments) {
  TESSERA_NEEDS_DEVICE();
  DeviceSample sample;
  if (watches_races()) return;
  for (DType t : {DType::f32, DType::bf16})
    for (const AttentionShape& s : sample.some(attention_window_cases(t), 2)) expect_that_a_window_has_the_bits_of_its_documents(s);
}

void expect_that_one_document_has_the_bits_of_none(const AttentionShape& s) {
  AttentionOperands x(s);
  const AttentionResult none = on_device(s, x);
  x.starts.resize(static_cast<std::size_t>(s.B * s.T));
  expect_same_bits(s, on_device(s, x), none);
}

TEST(AttentionCuda, OneDocumentHasTheBitsOfNone) {
  TESSERA_NEEDS_DEVICE();
  DeviceSample sample;
  if (watches_races()) return;
  for (DType t : {DType::f32, DType::bf16})
    for (const AttentionShape& s : sample.some(attention_cases(t), 3)) expect_that_one_document_has_the_bits_of_none(s);
}

TEST(AttentionCuda, LargeScoresOfDocumentsDoNotOverflow) {
  TESSERA_NEEDS_DEVICE();
  for (DType t : {DType::f32, DType::bf16}) {
    const AttentionShape s{.B = 1, .T = 300, .H = 2, .G = 1, .D = 64, .dtype = t};
    AttentionOperands x(s, 30);
    x.starts = random_documents(1, 300, 7);
    const AttentionResult got = on_device(s, x), want = on_host(s, x);
    EXPECT_LT(relative_error(got.out.doubles(), want.out.doubles()), 1e-2);
    EXPECT_LT(relative_error(got.lse.doubles(), want.lse.doubles()), 1e-5);
  }
}

TEST(AttentionCuda, SameBitsTwice) {
  TESSERA_NEEDS_DEVICE();
  if (watches_races()) return;  // in kernels that others have run
  for (DType t : {DType::f32, DType::bf16})
    for (std::int64_t D : {64, 128}) {
      const AttentionShape s{.B = 1, .T = 200, .H = 2, .G = 1, .D = D, .dtype = t};
      const AttentionOperands x(s);
      const AttentionResult first = on_device(s, x);
      const AttentionResult second = again([&] { return on_device(s, x); });
      EXPECT_EQ(first.out.bytes(), second.out.bytes());
      EXPECT_EQ(first.lse.bytes(), second.lse.bytes());
      EXPECT_EQ(first.d_qkv.bytes(), second.d_qkv.bytes());
    }
}

class AttentionOnHopper : public OnHopper {};

AttentionResult forward_on_device(const AttentionShape& s, const AttentionOperands& x) {
  AttentionResult r(s);
  DeviceBytes qkv(x.qkv.bytes()), out(r.out.bytes().size()), lse(r.lse.bytes().size());
  cuda::attention_forward({}, {.out = out.data(), .lse = lse.floats(), .qkv = packed_qkv(qkv.data(), s), .shape = s});
  fetch(r.out, out);
  fetch(r.lse, lse);
  r.intact = out.intact() && lse.intact();
  return r;
}

/// In bf16, and the first of each head dim that has kernels of its own in fp16 too. Under the thread sanitizer those alone and in bf16:
/// more lengths and types are no other races.
std::vector<AttentionShape> hopper_shapes(std::vector<AttentionShape> shapes) {
  if (watches_races()) shapes.resize(std::min<std::size_t>(shapes.size(), 3));
  for (AttentionShape& s : shapes) s.dtype = DType::bf16;
  if (watches_races()) return shapes;
  for (std::size_t i = 0; i < 3; ++i) {
    shapes.push_back(shapes[i]);
    shapes.back().dtype = DType::f16;
  }
  return shapes;
}

TEST_F(AttentionOnHopper, ForwardMatchesTheHost) {
  for (const AttentionShape& s : DeviceSample().some(hopper_shapes({{.B = 1, .T = 129, .H = 1, .G = 1, .D = 128},
                                                                    {.B = 1, .T = 200, .H = 2, .G = 1, .D = 96},
                                                                    {.B = 1, .T = 257, .H = 4, .G = 1, .D = 64},
                                                                    {.B = 2, .T = 1, .H = 7, .G = 1, .D = 64},
                                                                    {.B = 1, .T = 77, .H = 2, .G = 2, .D = 128},
                                                                    {.B = 2, .T = 128, .H = 2, .G = 1, .D = 104},
                                                                    {.B = 1, .T = 200, .H = 1, .G = 1, .D = 122},
                                                                    {.B = 1, .T = 65, .H = 2, .G = 1, .D = 40},
                                                                    {.B = 1, .T = 130, .H = 1, .G = 1, .D = 70},
                                                                    {.B = 1, .T = 660, .H = 1, .G = 1, .D = 128}}),
                                                     5)) {  // tiles come to each stage again
    const AttentionOperands x(s);
    const AttentionResult got = forward_on_device(s, x), want = on_host(s, x);
    EXPECT_TRUE(got.intact);
    EXPECT_LT(relative_error(got.out.doubles(), want.out.doubles()), tolerance(s.dtype)) << name_of(s);
    EXPECT_LT(relative_error(got.lse.doubles(), want.lse.doubles()), 1e-5) << s.T << " tokens, D " << s.D;
    const AttentionResult second = again([&] { return forward_on_device(s, x); });
    EXPECT_EQ(got.out.bytes(), second.out.bytes()) << s.T << " tokens, D " << s.D;
    EXPECT_EQ(got.lse.bytes(), second.lse.bytes()) << s.T << " tokens, D " << s.D;
  }
}

TEST_F(AttentionOnHopper, BackwardMatchesTheHost) {
  for (const AttentionShape& s : DeviceSample().some(hopper_shapes({{.B = 1, .T = 129, .H = 1, .G = 1, .D = 128},
                                                                    {.B = 1, .T = 129, .H = 2, .G = 1, .D = 96},
                                                                    {.B = 1, .T = 257, .H = 2, .G = 1, .D = 64},
                                                                    {.B = 2, .T = 1, .H = 3, .G = 1, .D = 64},
                                                                    {.B = 1, .T = 77, .H = 4, .G = 2, .D = 128},
                                                                    {.B = 2, .T = 128, .H = 2, .G = 1, .D = 104},
                                                                    {.B = 1, .T = 200, .H = 3, .G = 1, .D = 96},
                                                                    {.B = 1, .T = 65, .H = 2, .G = 1, .D = 42},
                                                                    {.B = 1, .T = 130, .H = 1, .G = 1, .D = 70},
                                                                    {.B = 1, .T = 330, .H = 1, .G = 1, .D = 128}}),
                                                     3)) {
    const AttentionOperands x(s);
    const AttentionResult got = on_device(s, x);
    expect_close(s, got, on_host(s, x));
    const AttentionResult second = again([&] { return on_device(s, x); });
    EXPECT_EQ(got.d_qkv.bytes(), second.d_qkv.bytes()) << s.T << " tokens, D " << s.D;
  }
}

// Ours, whatever path the shape names.
TEST_F(AttentionOnHopper, DocumentsMatchTheHost) {
  for (AttentionShape s : DeviceSample().some(hopper_shapes({{.B = 1, .T = 257, .H = 2, .G = 1, .D = 128},
                                                             {.B = 2, .T = 200, .H = 2, .G = 2, .D = 64, .path = AttentionPath::cudnn},
                                                             {.B = 1, .T = 330, .H = 1, .G = 1, .D = 96},
                                                             {.B = 1, .T = 200, .H = 2, .G = 1, .D = 122},
                                                             {.B = 1, .T = 260, .H = 4, .G = 2, .D = 40}}),
                                              2)) {
    AttentionOperands x(s);
    x.starts = random_documents(s.B, s.T, 5);
    const AttentionResult got = on_device(s, x);
    expect_close(s, got, on_host(s, x));
    if (watches_races()) continue;
    expect_same_bits(s, again([&] { return on_device(s, x); }), got);
  }
}

// Ours, whatever path the shape names.
TEST_F(AttentionOnHopper, WindowsMatchTheHost) {
  DeviceSample sample;
  std::vector<AttentionShape> shapes = attention_window_cases(DType::bf16);
  std::erase_if(shapes, [](const AttentionShape& s) { return s.D <= 32 || s.D > 128; });
  shapes[0].path = AttentionPath::cudnn;
  for (const AttentionShape& s : sample.some(shapes, 2)) {
    AttentionOperands x(s);
    const AttentionResult got = on_device(s, x);
    expect_close(s, got, on_host(s, x));
    if (watches_races()) continue;
    expect_same_bits(s, again([&] { return on_device(s, x); }), got);
    x.starts = random_documents(s.B, s.T, 5);
    expect_close(s, on_device(s, x), on_host(s, x));
  }
}

// Ours where there is a cap, whatever path the shape names.
TEST_F(AttentionOnHopper, ScalesAndCapsMatchTheHost) {
  DeviceSample sample;
  for (DType t : {DType::bf16, DType::f16}) {
    if (watches_races() && t == DType::f16) continue;
    std::vector<AttentionShape> shapes = attention_score_cases(t);
    std::erase_if(shapes, [](const AttentionShape& s) { return !cuda::warpgroup_head_dim(s.D); });
    for (AttentionShape s : sample.some(shapes, watches_races() ? 1 : 2)) {
      if (s.softcap > 0) s.path = AttentionPath::cudnn;
      expect_scores_as_on_the_host(s);
    }
  }
}

TEST_F(AttentionOnHopper, LargeScoresStayBelowTheCap) {
  if (!watches_races()) expect_large_scores_below_the_cap(DType::bf16);
}

TEST_F(AttentionOnHopper, DocumentsAtEdgesOfTilesMatchTheHost) {
  DeviceSample sample;
  for (const auto& [s, starts] : sample.some(attention_edges(DType::bf16), 3)) {
    if (watches_races() && s.D == 96) continue;  // has the code of 128
    AttentionOperands x(s);
    x.starts = starts;
    expect_close(s, on_device(s, x), on_host(s, x));
  }
}

TEST_F(AttentionOnHopper, OneDocumentHasTheBitsOfNone) {
  DeviceSample sample;
  if (watches_races()) return;
  for (const AttentionShape& s : sample.some(attention_cases(DType::bf16), 4))
    if (s.D > 32 && s.D <= 128) expect_that_one_document_has_the_bits_of_none(s);
}

// Where documents begin with blocks they are computed as they are alone, to the bit.
TEST_F(AttentionOnHopper, DocumentsThatBeginWithBlocksHaveTheBitsOfSequences) {
  if (watches_races()) return;
  for (std::int64_t D : {64, 128}) {
    const AttentionShape alone{.B = 3, .T = 128, .H = 2, .G = 1, .D = D, .dtype = DType::bf16};
    const AttentionOperands x(alone);
    AttentionShape packed = alone;
    packed.B = 1, packed.T = 3 * 128;
    AttentionOperands all(packed);
    all.starts = documents_of({128, 128, 128});
    ASSERT_EQ(all.qkv.bytes(), x.qkv.bytes());
    const AttentionResult one = on_device(alone, x), other = on_device(packed, all);
    EXPECT_EQ(other.out.bytes(), one.out.bytes()) << D;
    EXPECT_EQ(other.d_qkv.bytes(), one.d_qkv.bytes()) << D;
  }
}

TEST_F(AttentionOnHopper, LargeScoresOfDocumentsDoNotOverflow) {
  if (watches_races()) return;
  const AttentionShape s{.B = 1, .T = 300, .H = 2, .G = 1, .D = 64, .dtype = DType::bf16};
  AttentionOperands x(s, 30);
  x.starts = random_documents(1, 300, 7);
  const AttentionResult got = on_device(s, x), want = on_host(s, x);
  EXPECT_LT(relative_error(got.out.doubles(), want.out.doubles()), 1e-2);
  EXPECT_LT(relative_error(got.lse.doubles(), want.lse.doubles()), 1e-5);
}

TEST_F(AttentionOnHopper, OperandsThatAreNotAlignedTo16Bytes) {
  const AttentionShape s{.B = 1, .T = 70, .H = 1, .G = 1, .D = 64, .dtype = DType::bf16};
  AttentionOperands x(s);
  expect_close(s, on_device(s, x, 4), on_host(s, x));
  x.starts = documents_of({30, 40});
  expect_close(s, on_device(s, x, 4), on_host(s, x));
}

}  // namespace
}  // namespace tessera::kernels::attention_cuda_test
