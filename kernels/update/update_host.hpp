// An elementwise update on host threads, in one pass. Bound by memory: of AdamW 16 bytes read a parameter (14 with bf16 gradients, 20 with
// fixed-point ones) and 12 or 14 written. The lines of master and state are in cache when they are written, so plain stores cost nothing
// extra; the compute copy is only written, so it streams when it is large.
#pragma once
#include <algorithm>
#include <atomic>

#include "kernels/elementwise/elementwise.hpp"
#include "kernels/parallel.hpp"
#include "kernels/update/exact_squares.hpp"
#include "kernels/update/update.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace update_detail {

/// Sixteen gradients; fixed point is rounded to fp32 as fixed_to_float does.
template <class Count>
TESSERA_INLINE f32x16 load_grad(const float* p, Count n) {
  return load(p, n);
}
template <class Count>
TESSERA_INLINE f32x16 load_grad(const bf16* p, Count n) {
  return load(p, n);
}
template <class Count>
TESSERA_INLINE f32x16 load_grad(const std::int64_t* p, Count n) {
  return load(p, n) * 0x1p-44f;
}

/// Elements by which memory is asked ahead: the hardware's own prefetch stops at pages, and follows four streams less well than one.
constexpr std::int64_t ahead = 256;

/// bf16 numbers that are the upper halves of floats, and no others: nothing is rounded.
template <class Count>
TESSERA_INLINE void store_upper_halves(bf16* p, const f32x16& x, Count count) {
  const u32x16 halves = bits_as<u32x16>(x) >> 16;
#if defined(TESSERA_AVX512)
  store_bits<false>(p, _mm512_cvtepi32_epi16(std::bit_cast<__m512i>(halves)), count);
#elif defined(TESSERA_AVX2)
  const __m256i packed = _mm256_packus_epi32(std::bit_cast<__m256i>(halves.part[0]), std::bit_cast<__m256i>(halves.part[1]));
  store_bits<false>(p, _mm256_permute4x64_epi64(packed, 0xd8), count);
#else
  for (int i = 0; i < count; ++i) p[i] = std::bit_cast<bf16>(static_cast<std::uint16_t>(halves[i]));
#endif
}

/// The compute copy of new weights. Its type and its way to memory are read at each vector: an update waits for memory, so the branch costs
/// nothing, and a body for each would take the compiler five times as long.
class ComputeCopy {
 public:
  ComputeCopy(const Update& p, bool streamed) : to_(p.param), way_(way_of(p, streamed)) {}
  /// w are the weights [i, i + n).
  template <class Count>
  TESSERA_INLINE void store_weights(std::int64_t i, const f32x16& w, Count n) const {
    switch (way_) {
      case Way::none:
        return;
      case Way::bf16_cached:
        return store<false>(static_cast<bf16*>(to_) + i, w, n);
      case Way::bf16_streamed:
        return store<true>(static_cast<bf16*>(to_) + i, w, n);
      case Way::f16_cached:
        return store<false>(static_cast<f16*>(to_) + i, w, n);
      case Way::f16_streamed:
        return store<true>(static_cast<f16*>(to_) + i, w, n);
    }
  }
  /// After the last of a thread.
  void end() const {
    if (way_ == Way::bf16_streamed || way_ == Way::f16_streamed) stream_fence();
  }

 private:
  enum class Way { none, bf16_cached, bf16_streamed, f16_cached, f16_streamed };
  static Way way_of(const Update& p, bool streamed) {
    if (!p.param) return Way::none;
    Way way = Way::none;
    with_half_type(p.param_dtype, "the copy of an update", [&](auto type) {
      if constexpr (std::is_same_v<decltype(type), bf16>)
        way = streamed ? Way::bf16_streamed : Way::bf16_cached;
      else
        way = streamed ? Way::f16_streamed : Way::f16_cached;
    });
    return way;
  }

  void* to_;
  Way way_;
};

/// How new states are kept.
template <class State>
struct Keeping {
  bool by_chance = false;
  std::uint32_t seed[most_update_states] = {};
  explicit Keeping(const Update& p) : by_chance(sizeof(State) == 2 && p.stochastic) {
    for (int s = 0; s < most_update_states; ++s) seed[s] = state_seed(*p.scalars, s);
  }
  /// State s, which `unlike` changed.
  template <class Count>
  TESSERA_INLINE void store_state(State* to, const f32x16& x, [[maybe_unused]] const f32x16& unlike, [[maybe_unused]] int s,
                                  Count n) const {
    if constexpr (sizeof(State) == 2) {
      if (by_chance) return store_upper_halves(to, stochastic_bf16(x, unlike, seed[s]), n);
    }
    store(to, x, n);
  }
};

/// split_square of a b, which fp64 holds exactly.
TESSERA_INLINE SplitSquare<f64x8> split_product(const f64x8& a, const f64x8& b) {
  const f64x8 high = fma(a, b, f64x8(0x1.8p12)) - 0x1.8p12;
  return {high, (fma(a, b, -high) + 0x1.8p-28) - 0x1.8p-28};
}

/// Sums of squares below large_square, in units of 2^-40 and 2^-80; or of all squares.
struct SumOfSquares {
  std::int64_t high = 0, low = 0;
  FixedSum all;
};
/// Of `count` numbers, whole vectors of them.
inline __attribute__((noinline)) SumOfSquares sum_of_some_squares(const float* x, int count) {
  f32x16 most{};
  // Two chains of each, since additions take longer than what is between them.
  f64x8 high[2] = {}, low[2] = {};
  for (int i = 0; i < count; i += lanes) {
    const f32x16 v = load(x + i);
    most = max(most, v * v);
    unrolled<2>([&](auto k) __attribute__((always_inline)) {
      const f64x8 wide = to_f64(x + i + 8 * k);
      const SplitSquare<f64x8> square = split_product(wide, wide);
      high[k] += square.high, low[k] += square.low;
    });
  }
  SumOfSquares sum;
  if (horizontal_max(most) < static_cast<float>(large_square)) {
    sum.high = static_cast<std::int64_t>(horizontal_sum(high[0] + high[1]) * 0x1p40);
    sum.low = static_cast<std::int64_t>(horizontal_sum(low[0] + low[1]) * 0x1p80);
  } else {
    for (int i = 0; i < count; ++i) sum.all.add(static_cast<double>(x[i]) * static_cast<double>(x[i]));
  }
  return sum;
}

/// What a thread has of one of a tensor's sums. The room for numbers lies elsewhere, so that the rest may be in registers.
class ExactSquares {
 public:
  struct alignas(64) Room {
    float some[squares_at_once];
  };
  explicit ExactSquares(Room& room) : some_(room.some) {}
  template <class Count>
  TESSERA_INLINE void add(const f32x16& x, Count n) {
    if constexpr (!is_whole<Count>) store(some_ + count_, f32x16{});
    store(some_ + count_, x, n);
    if (count_ += lanes; count_ == squares_at_once) flush();
  }
  /// What is not finite adds nothing: such weights end the run by their loss.
  void add_to(FixedSum& sum) {
    flush();
    whole_.add(sum_of_parts(high_, low_));
    for (int i = 0; i < 4; ++i) std::atomic_ref<std::int64_t>(sum.limb[i]).fetch_add(whole_.limb[i], std::memory_order_relaxed);
  }

 private:
  TESSERA_INLINE void flush() {
    const SumOfSquares sum = sum_of_some_squares(some_, count_);
    high_ += sum.high, low_ += sum.low;
    whole_.add(sum.all);
    count_ = 0;
  }

  float* some_;
  int count_ = 0;
  FixedSum whole_;
  __int128 high_ = 0, low_ = 0;  // in the units of SumOfSquares
};

template <class Rule, class Grad, class State>
void update_range(Update p, Rule rule, ComputeCopy copy, std::int64_t begin, std::int64_t end) {  // by value: known not to alias the stores
  const Grad* grad = static_cast<const Grad*>(p.grad);
  State* kept[most_update_states] = {};
  for (int s = 0; s < Rule::states; ++s) kept[s] = static_cast<State*>(p.state[s]);
  ExactSquares::Room room[std::max(Rule::sums, 1)];
  ExactSquares sums[] = {ExactSquares(room[0]), ExactSquares(room[std::max(Rule::sums, 1) - 1])};
  const Keeping<State> keeping(p);
  // Where more of the time goes to arithmetic, processors see fewer loads behind it.
  constexpr std::int64_t ahead = sizeof(State) == 2 || Rule::sums > 0 ? 4 * update_detail::ahead : update_detail::ahead;
  for_vectors(begin, end, [&](std::int64_t i, auto n) {
    prefetch(p.master + i + ahead);
    f32x16 w = load(p.master + i, n), state[most_update_states], g{}, summed[most_update_sums];
    if constexpr (Rule::reads_gradient) {
      prefetch(grad + i + ahead);
      if constexpr (sizeof(Grad) == 8) prefetch(grad + i + ahead + lanes / 2);
      g = load_grad(grad + i, n);
    }
    unrolled<Rule::states>([&](auto k) __attribute__((always_inline)) {
      prefetch(kept[k] + i + ahead);
      state[k] = load(kept[k] + i, n);
    });
    if constexpr (Rule::sums > 0)
      rule(w, state, g, summed);
    else
      rule(w, state, g);
    unrolled<Rule::sums>([&](auto k) __attribute__((always_inline)) { sums[k].add(summed[k], n); });
    if constexpr (Rule::changes_state)
      unrolled<Rule::states>([&](auto k) __attribute__((always_inline)) { keeping.store_state(kept[k] + i, state[k], g, k, n); });
    if constexpr (Rule::changes_master) store(p.master + i, w, n);
    copy.store_weights(i, w, n);
  });
  for (int s = 0; s < Rule::sums; ++s) sums[s].add_to(p.sums[s]);
  copy.end();
}

template <class Rule, class Grad, class State>
void run(const Update& p) {
  const Rule rule(*p.scalars, p);
  // What else the call touches, at least the bytes of master and state read and written, leaves no copy in the caches to whoever takes it
  // up.
  const bool stream = p.param && worth_streaming(p.param, p.n * (4 + Rule::states * static_cast<std::int64_t>(sizeof(State))), 64);
  const ComputeCopy copy(p, stream);
  parallel_ranges(p.n, 4096, [&](std::int64_t begin, std::int64_t end) { update_range<Rule, Grad, State>(p, rule, copy, begin, end); });
}

}  // namespace update_detail

template <class Rule>
void update_elements(const char* op, const Update& p) {
  if (p.n == 0) return;
  // Where the copy is on its way to kernels, it is made in memory that others have used meanwhile.
  if (p.scalars->skip) return p.param ? host::cast({}, p.param, p.param_dtype, p.master, DType::f32, p.n) : void();
  with_sum_type(p.grad_dtype, op, [&](auto type) {
    if (p.state_type == StateType::f32 || Rule::states == 0) return update_detail::run<Rule, decltype(type), float>(p);
    TESSERA_REQUIRE(p.state_type == StateType::bf16, "{}: state of type {}", op, static_cast<int>(p.state_type));
    if constexpr (Rule::states > 0) update_detail::run<Rule, decltype(type), bf16>(p);
  });
}

}  // namespace tessera::kernels::host
