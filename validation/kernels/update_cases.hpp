// What the kernel of every optimizer must do, on states and gradients drawn by a seed.
#pragma once
#include <functional>
#include <ostream>

#include "base/check.hpp"
#include "kernels/update/update.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct UpdateCase {
  std::int64_t n;
  bool copy = true;   ///< weights are copied in bf16
  bool skip = false;  ///< the step is left out, whatever the gradient
};
/// Less than a vector, whole ones, remainders, more than a block of threads; without a copy; steps that are skipped.
inline const UpdateCase update_cases[] = {{1}, {3}, {16}, {77}, {1013}, {4096}, {9001}, {1013, false}, {77, true, true}, {77, false, true}};
inline std::ostream& operator<<(std::ostream& out, const UpdateCase& c) {
  return out << c.n << " parameters, copy " << c.copy << ", skip " << c.skip;
}

inline constexpr double update_beta1 = 0.9, update_beta2 = 0.95;

inline UpdateScalars scalars_of_step(int step, float learning_rate, float grad_scale) {
  return {.learning_rate = learning_rate,
          .beta1 = static_cast<float>(update_beta1),
          .beta2 = static_cast<float>(update_beta2),
          .eps = 1e-8f,
          .bias_correction1 = static_cast<float>(1 - std::pow(update_beta1, step)),
          .bias_correction2 = static_cast<float>(1 - std::pow(update_beta2, step)),
          .grad_scale = grad_scale,
          .momentum = 0.8f};
}

/// The second state of an update is a mean of squares.
struct UpdateState {
  std::vector<float> master, state[most_update_states];
  std::vector<bf16> param;  ///< poisoned
  explicit UpdateState(std::int64_t n)
      : master(random_values<float>(n, 1)),
        state{random_values<float>(n, 2, 1e-3f), random_values<float>(n, 3, 1e-6f)},
        param(poisoned<bf16>(n)) {
    for (float& x : state[1]) x = std::abs(x);
  }
  Hash128 hash() const { return digest(master, state[0], state[1], param); }
  /// A call of the elements from `first` on, but for the gradient and the step's values.
  Update call(std::int64_t first = 0, bool copy = true) {
    return {.master = master.data() + first,
            .state = {state[0].data() + first, state[1].data() + first},
            .param = copy ? param.data() + first : nullptr};
  }
};

/// Gradients that fp32 holds, as Grad has them.
template <class Grad>
std::vector<Grad> update_gradients(std::int64_t n, unsigned seed) {
  const auto g = random_values<float>(n, seed, 0.1f);
  if constexpr (std::is_same_v<Grad, std::int64_t>) {
    std::vector<std::int64_t> fixed;
    for (float x : g) fixed.push_back(std::llrint(static_cast<double>(x) * 0x1p44) * 1021 + 1);  // more digits than fp32 has
    return fixed;
  } else {
    return {g.begin(), g.end()};
  }
}

/// Gradients in fixed point; the values become what it holds.
inline std::vector<std::int64_t> in_fixed_point(std::vector<float>& values) {
  std::vector<std::int64_t> fixed;
  for (float& g : values) {
    fixed.push_back(std::llrint(std::ldexp(static_cast<double>(g), 44)));
    g = std::ldexp(static_cast<float>(fixed.back()), -44);
  }
  return fixed;
}

struct UpdateTested {
  void (*run)(const Context&, const Update&);
  int states;
  /// One element in fp64, written out: weight, state, gradient, step, learning rate, weight decay.
  std::function<void(double&, double*, double, int, double, double)> reference;

  void step(UpdateState& to, const void* grad, DType dtype, const UpdateScalars& s, float weight_decay, std::int64_t first = 0,
            std::int64_t n = -1, float rate_scale = 1, bool copy = true) const {
    Update p = to.call(first, copy);
    p.grad = grad, p.grad_dtype = dtype, p.n = n < 0 ? std::ssize(to.master) : n;
    p.rate_scale = rate_scale, p.weight_decay = weight_decay, p.scalars = &s;
    run({}, p);
  }

  /// Twenty steps from zero state, as a run begins: every element stays within a few fp32 roundings of fp64. What is skipped, or not asked
  /// for, stays to the bit.
  void expect_reference() const {
    for (const UpdateCase& c : update_cases)
      for (const auto& [weight_decay, rate] : {std::pair{0.0f, 1.0f}, {0.1f, 1.0f}, {0.1f, 0.3f}}) {
        SCOPED_TRACE(::testing::Message() << c << ", weight decay " << weight_decay << ", rate " << rate);
        UpdateState now(c.n);
        for (auto& values : now.state) std::fill(values.begin(), values.end(), 0.0f);
        UpdateState before = now;
        std::vector<double> w = doubles(now.master);
        std::vector<std::array<double, most_update_states>> state(w.size());
        constexpr float lr = 3e-3f, scale = 0.25f;
        for (int t = 1; t <= 20; ++t) {
          const auto grad = c.skip ? poisoned<float>(c.n) : random_values<float>(c.n, 100 + static_cast<unsigned>(t));
          UpdateScalars s = scalars_of_step(t, lr, scale);
          s.skip = c.skip;
          step(now, grad.data(), DType::f32, s, weight_decay, 0, -1, rate, c.copy);
          for (std::size_t i = 0; i < grad.size(); ++i)
            reference(w[i], state[i].data(), static_cast<double>(grad[i] * scale), t, static_cast<double>(lr * rate),
                      static_cast<double>(weight_decay));
        }
        if (c.skip) {
          if (c.copy) before.param = std::vector<bf16>(before.master.begin(), before.master.end());
          EXPECT_EQ(now.hash(), before.hash());
          continue;
        }
        for (std::size_t i = 0; i < w.size(); ++i) {
          EXPECT_NEAR(static_cast<double>(now.master[i]), w[i], 2e-6 + 1e-6 * std::abs(w[i]));
          for (int k = 0; k < most_update_states; ++k) {
            const double expected = k < states ? state[i][static_cast<std::size_t>(k)] : 0;
            EXPECT_NEAR(static_cast<double>(now.state[k][i]), expected, 1e-6 * (k == 0 ? 1 + std::abs(expected) : expected)) << k;
          }
          if (c.copy) {
            EXPECT_EQ(now.param[i], bf16(now.master[i]));
          }
        }
        if (!c.copy) {
          EXPECT_EQ(digest(now.param), digest(before.param));
        }
      }
  }

  /// An element's bits are its own: alone, in any place of a range, in a vector or in the remainder. The copy of a long call is written
  /// around the caches.
  void expect_bits_of_any_place() const {
    constexpr std::int64_t n = 131, large = (3 << 20) + 7;
    const auto grad = random_values<float>(n, 9), many = random_values<float>(large, 9);
    const UpdateScalars s = scalars_of_step(7, 1e-2f, 0.7f);
    UpdateState whole(n);
    step(whole, grad.data(), DType::f32, s, 0.1f);
    for (std::int64_t piece : {1, 3, 16, 17, 64, 130}) {
      UpdateState pieces(n);
      for (std::int64_t i = 0; i < n; i += piece) step(pieces, grad.data() + i, DType::f32, s, 0.1f, i, std::min(piece, n - i));
      EXPECT_EQ(pieces.hash(), whole.hash()) << piece;
    }
    UpdateState at_once(large), pieces(large);
    std::vector<bf16> room = poisoned<bf16>(large + 32);
    std::byte* copy = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::intptr_t>(room.data()), 64));
    Update p = at_once.call();
    p.param = copy, p.grad = many.data(), p.n = large, p.weight_decay = 0.1f, p.scalars = &s;
    run({}, p);
    std::memcpy(static_cast<void*>(at_once.param.data()), copy, large * sizeof(bf16));
    constexpr std::int64_t piece = 1 << 20;
    for (std::int64_t i = 0; i < large; i += piece) step(pieces, many.data() + i, DType::f32, s, 0.1f, i, std::min(piece, large - i));
    EXPECT_EQ(at_once.hash(), pieces.hash());
  }

  /// Copies in fp16: one that fits the caches, and one that is written around them.
  void expect_copies_in_fp16() const {
    for (const std::int64_t n : {1013, (3 << 20) + 7}) {
      const auto grad = random_values<float>(n, 9);
      const UpdateScalars s = scalars_of_step(7, 1e-2f, 0.7f);
      UpdateState state(n);
      std::vector<f16> room = poisoned<f16>(n + 32);
      f16* copy = reinterpret_cast<f16*>(round_up(reinterpret_cast<std::intptr_t>(room.data()), 64));
      Update p = state.call();
      p.param = copy, p.param_dtype = DType::f16, p.grad = grad.data(), p.n = n, p.scalars = &s;
      run({}, p);
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(copy[i], f16(state.master[static_cast<std::size_t>(i)])) << i;
    }
  }

  /// Gradients in bf16 and in fixed point are those in fp32.
  void expect_any_gradient() const {
    for (const auto& [n, copy, skip] : update_cases) {
      auto values = random_values<float>(n, 9, 0.01f);
      const std::vector<bf16> halves(values.begin(), values.end());
      const std::vector<float> same(halves.begin(), halves.end());
      const std::vector<std::int64_t> fixed = in_fixed_point(values);
      UpdateScalars s = scalars_of_step(3, 1e-2f, 0.5f);
      s.skip = skip;
      const auto hash_of = [&, copy = copy, n = n](const void* grad, DType dtype) {
        UpdateState state(n);
        step(state, grad, dtype, s, 0.1f, 0, -1, 1, copy);
        return state.hash();
      };
      EXPECT_EQ(hash_of(same.data(), DType::f32), hash_of(halves.data(), DType::bf16));
      EXPECT_EQ(hash_of(values.data(), DType::f32), hash_of(fixed.data(), DType::i64));
    }
    UpdateState state(16);
    const auto grad = poisoned<float>(16);
    for (const DType t : {DType::u32, DType::f16}) EXPECT_THROW(step(state, grad.data(), t, scalars_of_step(1, 1, 1), 0), Error);
  }

  /// State in bf16: the weights of state in fp32, and each state the nearer of its two neighbours, or one of them by a chance that leaves
  /// the mean where it is, that is another in the next update, and that does not know where elements lie.
  void expect_states_in_bf16() const {
    constexpr std::int64_t n = 100003;
    for (const std::int64_t count : {std::int64_t{77}, n})
      for (const bool stochastic : {false, true}) {
        SCOPED_TRACE(::testing::Message() << count << (stochastic ? " by chance" : " to the nearest"));
        const auto grad = random_values<float>(count, 9, 0.01f);
        UpdateState plain(count);
        std::vector<bf16> halves[most_update_states];
        for (int s = 0; s < most_update_states; ++s) {
          halves[s] = {plain.state[s].begin(), plain.state[s].end()};
          plain.state[s] = {halves[s].begin(), halves[s].end()};
        }
        UpdateState short_of = plain;
        UpdateScalars scalars = scalars_of_step(7, 1e-2f, 0.7f);
        scalars.number = 6;
        step(plain, grad.data(), DType::f32, scalars, 0.1f);
        const auto in_halves = [&](std::vector<bf16>* to, std::int64_t piece) {
          UpdateState weights = short_of;
          for (std::int64_t i = 0; i < count; i += piece) {
            Update p = weights.call(i);
            p.state[0] = to[0].data() + i, p.state[1] = to[1].data() + i, p.state_type = StateType::bf16, p.stochastic = stochastic;
            p.grad = grad.data() + i, p.n = std::min(piece, count - i), p.weight_decay = 0.1f, p.scalars = &scalars;
            run({}, p);
          }
          return digest(weights.master, weights.param);
        };
        std::vector<bf16> whole[most_update_states] = {halves[0], halves[1]}, cut[most_update_states] = {halves[0], halves[1]};
        EXPECT_EQ(in_halves(whole, count), digest(plain.master, plain.param));
        EXPECT_EQ(in_halves(cut, 4001), digest(plain.master, plain.param));
        EXPECT_EQ(digest(cut[0], cut[1]), digest(whole[0], whole[1]));
        for (int s = 0; s < states; ++s) {
          double off = 0, apart = 0;
          for (std::size_t i = 0; i < whole[s].size(); ++i) {
            const auto exact = plain.state[s][i], kept = static_cast<float>(whole[s][i]), nearest = static_cast<float>(bf16(exact));
            if (!stochastic) {
              ASSERT_EQ(kept, nearest) << i;
            }
            const auto far = static_cast<double>(std::abs(kept - exact)), gap = std::ldexp(1.0, std::ilogb(exact) - 7);
            ASSERT_LT(far, gap) << i;
            off += static_cast<double>(kept - exact) / gap, apart += kept != nearest;
          }
          if (!stochastic || count < n) continue;
          EXPECT_NEAR(off / static_cast<double>(n), 0, 0.005) << "a sum of numbers of deviation 0.41";
          EXPECT_NEAR(apart / static_cast<double>(n), 0.25, 0.02) << "the farther neighbour as often as it is near";
        }
        scalars.number = 7;
        std::vector<bf16> later[most_update_states] = {halves[0], halves[1]};
        in_halves(later, count);
        EXPECT_EQ(digest(later[0], later[1]) == digest(whole[0], whole[1]), !stochastic || states == 0);
      }
  }

  void expect_bits_of_any_thread_count() const {
    expect_same_bits([this] {
      constexpr std::int64_t n = 100003;
      UpdateState state(n);
      for (int t = 1; t <= 3; ++t)
        step(state, random_values<float>(n, static_cast<unsigned>(t)).data(), DType::f32, scalars_of_step(t, 1e-2f, 1), 0.1f);
      return state.hash();
    });
  }

  void expect_all() const {
    expect_reference();
    expect_bits_of_any_place();
    expect_copies_in_fp16();
    expect_any_gradient();
    expect_states_in_bf16();
    expect_bits_of_any_thread_count();
  }
};

}  // namespace tessera::kernels::testing
