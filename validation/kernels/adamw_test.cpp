#include "adamw_cases.hpp"
#include "base/check.hpp"

namespace tessera::kernels::testing::adamw_test {
namespace {

/// A state that steps of this test change.
struct State : AdamwState {
  using AdamwState::AdamwState;
  void step(const void* grad, DType dtype, const UpdateScalars& s, float weight_decay, std::int64_t first = 0, std::int64_t n = -1,
            float rate_scale = 1, bool copy = true) {
    adamw({}, {.master = master.data() + first,
               .m = m.data() + first,
               .v = v.data() + first,
               .param = copy ? param.data() + first : nullptr,
               .grad = grad,
               .grad_dtype = dtype,
               .n = n < 0 ? static_cast<std::int64_t>(master.size()) : n,
               .rate_scale = rate_scale,
               .weight_decay = weight_decay,
               .scalars = &s});
  }
};

/// torch.optim.AdamW's single-tensor path in fp64, one element.
struct Reference {
  double w, m, v;
  void step(double grad, int t, double lr, double weight_decay) {
    w *= 1 - lr * weight_decay;
    m += (grad - m) * (1 - adamw_beta1);
    v = v * adamw_beta2 + grad * grad * (1 - adamw_beta2);
    double denominator = std::sqrt(v) / std::sqrt(1 - std::pow(adamw_beta2, t)) + 1e-8;
    w -= lr / (1 - std::pow(adamw_beta1, t)) * m / denominator;
  }
};

// Twenty steps from zero moments, as a run begins: every element stays within a few fp32 roundings of fp64. What is skipped, or not asked
// for, stays to the bit.
TEST(Adamw, FollowsTheReferenceOverSteps) {
  for (const AdamwCase& c : adamw_cases) {
    SCOPED_TRACE(::testing::Message() << c);
    for (auto [weight_decay, rate] : {std::pair{0.0f, 1.0f}, {0.1f, 1.0f}, {0.1f, 0.3f}}) {
      State state(c.n);
      std::fill(state.m.begin(), state.m.end(), 0.0f);
      std::fill(state.v.begin(), state.v.end(), 0.0f);
      const State before = state;
      std::vector<Reference> expected;
      for (float w : state.master) expected.push_back({static_cast<double>(w), 0, 0});
      constexpr float lr = 3e-3f, scale = 0.25f;
      for (int t = 1; t <= 20; ++t) {
        const auto grad = c.skip ? poisoned<float>(c.n) : random_values<float>(c.n, 100 + static_cast<unsigned>(t));
        UpdateScalars s = scalars_of_step(t, lr, scale);
        s.skip = c.skip;
        state.step(grad.data(), DType::f32, s, weight_decay, 0, -1, rate, c.copy);
        for (std::size_t i = 0; i < grad.size(); ++i) {
          expected[i].step(static_cast<double>(grad[i] * scale), t, static_cast<double>(lr * rate), static_cast<double>(weight_decay));
        }
      }
      if (c.skip) {
        EXPECT_EQ(state.hash(), before.hash());
        continue;
      }
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(static_cast<double>(state.master[i]), expected[i].w, 2e-6 + 1e-6 * std::abs(expected[i].w));
        EXPECT_NEAR(static_cast<double>(state.m[i]), expected[i].m, 1e-6);
        EXPECT_NEAR(static_cast<double>(state.v[i]), expected[i].v, 1e-6 * expected[i].v);
        if (c.copy) {
          EXPECT_EQ(state.param[i], bf16(state.master[i]));
        }
      }
      if (!c.copy) {
        EXPECT_EQ(digest(state.param), digest(before.param));
      }
    }
  }
}

// An element's bits are its own: alone, in any place of a range, in a vector or in the remainder.
TEST(Adamw, BitsDoNotDependOnThePlaceInTheRange) {
  constexpr std::int64_t n = 131;
  auto grad = random_values<float>(n, 9);
  UpdateScalars s = scalars_of_step(7, 1e-2f, 0.7f);
  State whole(n);
  whole.step(grad.data(), DType::f32, s, 0.1f);
  for (std::int64_t piece : {1, 3, 16, 17, 64, 130}) {
    State pieces(n);
    for (std::int64_t i = 0; i < n; i += piece) pieces.step(grad.data() + i, DType::f32, s, 0.1f, i, std::min(piece, n - i));
    EXPECT_EQ(pieces.hash(), whole.hash()) << piece;
  }
}

// The copy of a long call is written around the caches.
TEST(Adamw, CopiesOfLongCallsAreThoseOfShortOnes) {
  constexpr std::int64_t n = (3 << 20) + 7, piece = 1 << 20;
  const auto grad = random_values<float>(n, 9);
  const UpdateScalars s = scalars_of_step(7, 1e-2f, 0.7f);
  State whole(n), pieces(n);
  std::vector<bf16> room = poisoned<bf16>(n + 32);
  std::byte* copy = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::intptr_t>(room.data()), 64));
  adamw({}, {.master = whole.master.data(),
             .m = whole.m.data(),
             .v = whole.v.data(),
             .param = copy,
             .grad = grad.data(),
             .n = n,
             .weight_decay = 0.1f,
             .scalars = &s});
  std::memcpy(static_cast<void*>(whole.param.data()), copy, n * sizeof(bf16));
  for (std::int64_t i = 0; i < n; i += piece) pieces.step(grad.data() + i, DType::f32, s, 0.1f, i, std::min(piece, n - i));
  EXPECT_EQ(whole.hash(), pieces.hash());
}

// One that fits the caches, and one that is written around them.
TEST(Adamw, CopiesInFp16) {
  for (const std::int64_t n : {1013, (3 << 20) + 7}) {
    const auto grad = random_values<float>(n, 9);
    const AdamwScalars s = scalars_of_step(7, 1e-2f, 0.7f);
    State state(n);
    std::vector<f16> room = poisoned<f16>(n + 32);
    f16* copy = reinterpret_cast<f16*>(round_up(reinterpret_cast<std::intptr_t>(room.data()), 64));
    adamw({}, {.master = state.master.data(),
               .m = state.m.data(),
               .v = state.v.data(),
               .param = copy,
               .param_dtype = DType::f16,
               .grad = grad.data(),
               .n = n,
               .scalars = &s});
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(copy[i], f16(state.master[static_cast<std::size_t>(i)])) << i;
  }
}

TEST(Adamw, TakesGradientsInBf16) {
  for (const auto& [n, copy, skip] : adamw_cases) {
    const auto values = random_values<float>(n, 9, 0.01f);
    const std::vector<bf16> halves(values.begin(), values.end());
    const std::vector<float> same(halves.begin(), halves.end());
    State a(n), b(n);
    UpdateScalars s = scalars_of_step(3, 1e-2f, 0.5f);
    s.skip = skip;
    a.step(same.data(), DType::f32, s, 0.1f, 0, -1, 1, copy);
    b.step(halves.data(), DType::bf16, s, 0.1f, 0, -1, 1, copy);
    EXPECT_EQ(a.hash(), b.hash());
  }
}

TEST(Adamw, TakesFixedPointGradients) {
  for (const auto& [n, copy, skip] : adamw_cases) {
    auto grad = random_values<float>(n, 9, 0.01f);
    std::vector<std::int64_t> fixed;
    for (float& g : grad) {
      fixed.push_back(std::llrint(std::ldexp(static_cast<double>(g), 44)));
      g = std::ldexp(static_cast<float>(fixed.back()), -44);
    }
    State a(n), b(n);
    UpdateScalars s = scalars_of_step(3, 1e-2f, 0.5f);
    s.skip = skip;
    a.step(grad.data(), DType::f32, s, 0.1f, 0, -1, 1, copy);
    b.step(fixed.data(), DType::i64, s, 0.1f, 0, -1, 1, copy);
    EXPECT_EQ(a.hash(), b.hash());
  }
}

TEST(Adamw, RunsWithoutACopyAndSkipsWhenTold) {
  auto grad = random_values<float>(77, 9);
  UpdateScalars s = scalars_of_step(2, 1e-2f, 1);
  State with(77), without(77), skipped(77);
  with.step(grad.data(), DType::f32, s, 0);
  adamw({}, {.master = without.master.data(), .m = without.m.data(), .v = without.v.data(), .grad = grad.data(), .n = 77, .scalars = &s});
  EXPECT_EQ(digest(without.master, without.m, without.v), digest(with.master, with.m, with.v));
  s.skip = 1;
  std::string before = skipped.hash().hex();
  skipped.step(poisoned<float>(77).data(), DType::f32, s, 0.1f);
  EXPECT_EQ(skipped.hash().hex(), before);
}

TEST(Adamw, RefusesOtherGradientTypes) {
  State state(16);
  auto grad = poisoned<float>(16);
  for (const DType t : {DType::u32, DType::f16}) EXPECT_THROW(state.step(grad.data(), t, scalars_of_step(1, 1, 1), 0), Error);
}

TEST(Adamw, SameBitsForAnyThreadCount) {
  expect_same_bits([] {
    constexpr std::int64_t n = 100003;
    State state(n);
    for (int t = 1; t <= 3; ++t) {
      auto grad = random_values<float>(n, static_cast<unsigned>(t));
      state.step(grad.data(), DType::f32, scalars_of_step(t, 1e-2f, 1), 0.1f);
    }
    return state.hash();
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::adamw_test
