// A new token's attention on a GPU (or in the emulator) against the host's on the same inputs.
#include <cmath>
#include <memory>

#include "base/backend.hpp"
#include "validation/kernels/attention_runs.hpp"

namespace tessera::kernels::attention_decode_cuda_test {
namespace {
using namespace testing;

/// A new token at `position` before caches that are NaN from there on, and where a token was that a window has left behind. What decoding
/// leaves: its result and the caches.
struct Decoding {
  Tensor out, k, v;
  Decoding(const AttentionShape& s, std::int64_t capacity)
      : out(s.B * s.out_width(), s.dtype), k(s.B * capacity * s.G * s.D, s.dtype), v(s.B * capacity * s.G * s.value_dim(), s.dtype) {}
};
struct Cache {
  Tensor qkv, sinks;
  Decoding before;
  std::int32_t position;
  AttentionDecode arguments;
  bool with_sinks = false;
  Cache(const AttentionShape& s, std::int64_t capacity, std::int64_t position, double spread = 3)
      : qkv(s.B * s.qkv_width(), s.dtype), sinks(s.H, s.dtype), before(s, capacity), position(static_cast<std::int32_t>(position)) {
    arguments = {.capacity = capacity, .shape = s};
    qkv.randomize(1, spread);
    sinks.randomize(4, 4);
    before.k.randomize(2);
    before.v.randomize(3);
    const auto clear = [&](Tensor& cache, std::int64_t width) {
      for (std::int64_t i = 0; i < cache.size(); ++i)
        if (const std::int64_t row = i / width % capacity; row == position % capacity || row > position) cache.set(i, std::nan(""));
    };
    clear(before.k, s.G * s.D), clear(before.v, s.G * s.value_dim());
  }
  AttentionDecode with(void* out, const void* qkv, void* k, void* v) const {
    AttentionDecode a = arguments;
    const AttentionShape& s = a.shape;
    a.out = out, a.qkv = packed_qkv(qkv, s), a.cached_k = {k, s.G * s.D}, a.cached_v = {v, s.G * s.value_dim()};
    return a;
  }
  Decoding on_host() {
    Decoding after = before;
    AttentionDecode a = with(after.out.data(), qkv.data(), after.k.data(), after.v.data());
    a.position = &position;
    a.sinks = with_sinks ? sinks.data() : nullptr;
    host::attention_decode({}, a);
    return after;
  }
  Decoding on_device(std::size_t offset = 0) {
    Decoding after = before;
    const auto there = [&](const Tensor& x) { return std::make_unique<DeviceBytes>(x.bytes().size(), offset); };
    auto qkv_there = there(qkv), sinks_there = there(sinks), k = there(before.k), v = there(before.v), out = there(before.out);
    qkv_there->upload(qkv.bytes().data()), sinks_there->upload(sinks.bytes().data());
    k->upload(before.k.bytes().data()), v->upload(before.v.bytes().data());
    DeviceArray<std::int32_t> at(std::vector<std::int32_t>{position});
    DeviceBytes workspace(cuda::attention_decode_workspace_bytes(arguments));
    AttentionDecode a = with(out->data(), qkv_there->data(), k->data(), v->data());
    a.position = at.data();
    a.sinks = with_sinks ? sinks_there->data() : nullptr;
    cuda::attention_decode(workspace.context(), a);
    fetch(after.out, *out), fetch(after.k, *k), fetch(after.v, *v);
    return after;
  }
};

TEST(AttentionDecodeCuda, MatchesTheHost) {
  TESSERA_NEEDS_DEVICE();
  DeviceSample sample;
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (std::int64_t position : attention_decode_positions)
      for (const AttentionShape& s : sample.some(attention_decode_cases(t), 4)) {
        Cache cache(s, s.window > 0 ? std::min<std::int64_t>(310, s.window) : 310, position);
        const Decoding got = cache.on_device(), want = cache.on_host();
        EXPECT_LT(relative_error(got.out.doubles(), want.out.doubles()), tolerance(t)) << "at " << position << ", " << name_of(s);
        EXPECT_EQ(got.k.bytes(), want.k.bytes()) << "at " << position << ", " << name_of(s);
        EXPECT_EQ(got.v.bytes(), want.v.bytes()) << "at " << position << ", " << name_of(s);
      }
}

/// Sinks as they are drawn, and such that count for nothing or for all.
TEST(AttentionDecodeCuda, OfQueriesThatAttendToSinks) {
  TESSERA_NEEDS_DEVICE();
  DeviceSample sample;
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (std::int64_t position : {0, 63, 300})
      for (const AttentionShape& s : sample.some(attention_decode_cases(t), 2)) {
        if (watches_races() && (t != DType::bf16 || position == 63)) continue;
        Cache cache(s, 310, position);
        cache.with_sinks = true;
        const std::vector<double> want = cache.on_host().out.doubles();
        EXPECT_LT(relative_error(cache.on_device().out.doubles(), want), tolerance(t)) << "at " << position << ", " << name_of(s);
        const auto with_sink = [&](double z) {
          for (std::int64_t h = 0; h < s.H; ++h) cache.sinks.set(h, z);
          const Tensor out = cache.on_device().out;
          EXPECT_LT(relative_error(out.doubles(), cache.on_host().out.doubles()), tolerance(t)) << z << " at " << position << name_of(s);
          return out;
        };
        const double largest = t == DType::f16 ? 65504 : 3.38e38;
        for (const double x : with_sink(largest).doubles()) EXPECT_EQ(x, 0);
        const Tensor without = with_sink(-largest);
        EXPECT_EQ(with_sink(-INFINITY).bytes(), without.bytes());
        cache.with_sinks = false;
        EXPECT_EQ(cache.on_device().out.bytes(), without.bytes());
      }
}

// So many heads that a block takes all of its head's pieces, one after the other; five query heads are two turns in each.
TEST(AttentionDecodeCuda, ByBlocksOfSeveralPieces) {
  TESSERA_NEEDS_DEVICE();
  Cache cache({.B = 66, .H = 16, .G = 8, .D = 16, .dtype = DType::bf16}, 200, 150);
  EXPECT_LT(relative_error(cache.on_device().out.doubles(), cache.on_host().out.doubles()), tolerance(DType::bf16));
#ifdef TESSERA_EMULATED_GPU
  if (emulator::watches_races()) return;  // and takes long: so many blocks
  const Tensor forward = cache.on_device().out;
  emulator::set_order(emulator::Order::backward);
  EXPECT_EQ(cache.on_device().out.bytes(), forward.bytes());
  emulator::set_order(emulator::Order::forward);
#endif
}

TEST(AttentionDecodeCuda, OfOperandsThatAreNotAlignedTo16Bytes) {
  TESSERA_NEEDS_DEVICE();
  for (DType t : {DType::f32, DType::bf16}) {
    Cache cache({.B = 1, .H = 6, .G = 2, .D = 64, .dtype = t}, 80, 70);
    EXPECT_EQ(cache.on_device(4).out.bytes(), cache.on_device().out.bytes()) << name_of(t);
  }
}

TEST(AttentionDecodeCuda, OfLargeScoresDoesNotOverflow) {
  TESSERA_NEEDS_DEVICE();
  Cache cache({.B = 1, .H = 7, .G = 1, .D = 128, .dtype = DType::bf16}, 200, 170, 300);
  EXPECT_LT(relative_error(cache.on_device().out.doubles(), cache.on_host().out.doubles()), 1e-2);
}

TEST(AttentionDecodeCuda, DoesNotSwallowNan) {
  TESSERA_NEEDS_DEVICE();
  for (bool in_value : {false, true}) {
    Cache cache({.B = 1, .H = 2, .G = 1, .D = 64, .dtype = DType::bf16, .softcap = in_value ? 0.f : 5.f}, 200, 170);
    (in_value ? cache.before.v : cache.before.k).set(100 * 64 + 9, std::nan(""));
    const std::vector<double> out = cache.on_device().out.doubles();
    for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), !in_value || i % 64 == 9) << i;
  }
}

// The pieces, and so the bits, are those of the position: how much room there is beyond it does not matter.
TEST(AttentionDecodeCuda, DoesNotDependOnTheCapacity) {
  TESSERA_NEEDS_DEVICE();
  const AttentionShape s{.B = 1, .H = 7, .G = 1, .D = 64, .dtype = DType::bf16};
  EXPECT_EQ(Cache(s, 131, 130).on_device().out.bytes(), Cache(s, 1000, 130).on_device().out.bytes());
}

TEST(AttentionDecodeCuda, GivesTheSameBitsTwice) {
  TESSERA_NEEDS_DEVICE();
  for (DType t : {DType::f32, DType::bf16}) {
    Cache cache({.B = 1, .H = 10, .G = 2, .D = 64, .dtype = t}, 400, 333);
    const Tensor first = cache.on_device().out;
    const Tensor second = again([&] { return cache.on_device().out; });
    EXPECT_EQ(first.bytes(), second.bytes());
  }
}

}  // namespace
}  // namespace tessera::kernels::attention_decode_cuda_test
