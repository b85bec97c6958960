#include "attention_sinks_cases.hpp"

#include "base/check.hpp"
#include "validation/kernels/attention_reference.hpp"
#include "validation/unit/sample.hpp"

namespace tessera::kernels::testing::attention_sinks_test {
namespace {

using Case = SinksCase;

/// Those of both backends, and of the host alone: as many blocks of tokens as there are.
std::vector<Case> cases() {
  std::vector<Case> all(std::begin(sinks_cases), std::end(sinks_cases));
  all.push_back({3, 701, 3, 8});
  return all;
}

struct Expected {
  std::vector<double> out, lse, d_sinks;
};

template <class T>
struct Trial : SinksInputs<T> {
  using Inputs = SinksInputs<T>;
  using Inputs::c, Inputs::out, Inputs::lse, Inputs::d_sinks, Inputs::sinks, Inputs::d_out;
  using Inputs::Inputs;
  void forward() {
    AttentionSinksForward p = this->forward_arguments();
    p.out = out.data(), p.lse = lse.data();
    attention_sinks_forward({}, p);
  }
  void backward() {
    AttentionSinksBackward p = this->backward_arguments();
    p.d_sinks = d_sinks.data();
    Workspace workspace(attention_sinks_backward_workspace_bytes(p));
    attention_sinks_backward(workspace.context(), p);
    EXPECT_TRUE(workspace.intact());
  }
  /// Calls f(head, element of lse, first element of out) for each query.
  template <class F>
  void each(F f) const {
    for (std::int64_t row = 0; row < c.tokens(); ++row)
      for (std::int64_t h = 0; h < c.H; ++h)
        f(static_cast<std::size_t>(h), static_cast<std::size_t>((row / c.T * c.H + h) * c.T + row % c.T),
          static_cast<std::size_t>((row * c.H + h) * c.D));
  }
  Expected expected_forward() const {
    Expected e{doubles(out), doubles(lse), {}};
    const std::vector<double> z = doubles(sinks);
    each([&](std::size_t h, std::size_t term, std::size_t first) {
      const double difference = e.lse[term] - z[h];
      for (std::size_t d = 0; d < static_cast<std::size_t>(c.D); ++d) e.out[first + d] *= 1 / (1 + std::exp(-difference));
      e.lse[term] = std::max(e.lse[term], z[h]) + std::log1p(std::exp(-std::abs(difference)));
    });
    return e;
  }
  /// Of out and lse as they are.
  std::vector<double> expected_d_sinks() const {
    std::vector<double> d = doubles(d_sinks);
    const std::vector<double> z = doubles(sinks), dy = doubles(d_out), y = doubles(out), l = doubles(lse);
    each([&](std::size_t h, std::size_t term, std::size_t first) {
      for (std::size_t i = first; i < first + static_cast<std::size_t>(c.D); ++i) d[h] -= std::exp(z[h] - l[term]) * dy[i] * y[i];
    });
    return d;
  }
};

template <class T>
void check_against_definition() {
  for (const Case& c : cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    Trial<T> run(c);
    const Expected expected = run.expected_forward();
    run.forward();
    EXPECT_LT(relative_error(run.out, expected.out), tolerance<T>());
    EXPECT_LT(relative_error(run.lse, expected.lse), 1e-6);
    const std::vector<double> d_sinks = run.expected_d_sinks();
    run.backward();
    EXPECT_LT(relative_error(run.d_sinks, d_sinks), 1e-5);
  }
}
TEST(AttentionSinks, AreTheirDefinitionInFp32) { check_against_definition<float>(); }
TEST(AttentionSinks, AreTheirDefinitionInBf16) { check_against_definition<bf16>(); }
TEST(AttentionSinks, AreTheirDefinitionInFp16) { check_against_definition<f16>(); }

// Keys that count for nothing, and sinks that do, or that count for all.
template <class T>
void check_extremes(float largest) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  constexpr std::int64_t T_ = 5, H = 5, D = 20;
  const float lses[T_] = {-inf, -1e4f, 0, 1e4f, 80}, logits[H] = {-inf, -largest, 0.5f, 100, largest};
  Trial<T> run({1, T_, H, D});
  for (std::size_t h = 0; h < H; ++h) run.sinks[h] = T(logits[h]);
  run.each([&](std::size_t, std::size_t term, std::size_t first) {
    run.lse[term] = lses[term % T_];
    if (run.lse[term] == -inf) std::fill_n(run.out.data() + first, D, T(std::nanf("")));
  });
  const std::vector<T> plain = run.out;
  run.forward();
  run.each([&](std::size_t h, std::size_t term, std::size_t first) {
    SCOPED_TRACE(::testing::Message() << "lse " << lses[term % T_] << ", sink " << logits[h]);
    const double lse = static_cast<double>(lses[term % T_]), z = static_cast<double>(static_cast<float>(run.sinks[h]));
    const double share = lse == -inf ? 0 : 1 / (1 + std::exp(z - lse)), most = std::max(lse, z);
    const double wanted = most == -inf ? most : most + std::log(std::exp(lse - most) + std::exp(z - most));
    if (most == -inf) {
      EXPECT_EQ(run.lse[term], -inf);
    } else {
      EXPECT_NEAR(run.lse[term], wanted, 1e-6 * std::abs(wanted));
    }
    for (std::size_t i = first; i < first + D; ++i) {
      const double before = share == 0 ? 0 : static_cast<double>(static_cast<float>(plain[i]));
      EXPECT_NEAR(static_cast<float>(run.out[i]), before * share, std::abs(before * share) * 1e-2 + 1e-7);  // fp16 has no smaller numbers
    }
  });
  run.d_sinks.assign(H, 0);
  std::vector<double> d_sinks(H);
  run.each([&](std::size_t h, std::size_t term, std::size_t first) {
    const double z = static_cast<double>(static_cast<float>(run.sinks[h])), lse = static_cast<double>(run.lse[term]);
    for (std::size_t i = first; i < first + D; ++i)
      d_sinks[h] -= (z == -inf ? 0 : std::exp(z - lse)) *
                    (static_cast<double>(static_cast<float>(run.d_out[i])) * static_cast<double>(static_cast<float>(run.out[i])));
  });
  run.backward();
  for (std::size_t h = 0; h < H; ++h) EXPECT_NEAR(run.d_sinks[h], d_sinks[h], 1e-5 * std::max(1.0, std::abs(d_sinks[h]))) << h;
}
TEST(AttentionSinks, ExtremesGiveFiniteNumbers) {
  check_extremes<float>(3.4e38f);
  check_extremes<bf16>(3.38e38f);
  check_extremes<f16>(65504);
}

/// A few shapes of attention, of each type with windows, scales and caps.
std::vector<AttentionShape> chain_cases(DType t) {
  test::Sample sample;
  std::vector<AttentionShape> all = sample.some(attention_cases(t), 2);
  for (const auto& more : {sample.some(attention_window_cases(t), 3), sample.some(attention_score_cases(t), 1)})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Attention, sinks, attention's unchanged backward pass and that of the sinks: what a column of scores without values gives.
void check_chain(DType t) {
  for (const AttentionShape& s : chain_cases(t)) {
    SCOPED_TRACE(name_of(s));
    AttentionOperands x(s);
    Tensor sinks(s.H, t), out(s.B * s.T * s.H * s.value_dim(), t), lse(s.B * s.H * s.T, DType::f32), d_qkv(x.qkv.size(), t),
        d_sinks(s.H, DType::f32);
    sinks.randomize(3, 4), d_sinks.zero();
    const AttentionSinksBackward call{.d_sinks = d_sinks.as<float>(),
                                      .d_out = x.d_out.data(),
                                      .out = out.data(),
                                      .lse = lse.as<float>(),
                                      .sinks = sinks.data(),
                                      .B = s.B,
                                      .T = s.T,
                                      .H = s.H,
                                      .D = s.value_dim(),
                                      .dtype = t};
    Workspace forward(attention_forward_workspace_bytes(s)), backward(attention_backward_workspace_bytes(s)),
        sums(attention_sinks_backward_workspace_bytes(call));
    attention_forward(forward.context(), {.out = out.data(), .lse = lse.as<float>(), .qkv = packed_qkv(x.qkv.data(), s), .shape = s});
    attention_sinks_forward(
        {},
        {.out = out.data(), .lse = lse.as<float>(), .sinks = sinks.data(), .B = s.B, .T = s.T, .H = s.H, .D = s.value_dim(), .dtype = t});
    attention_backward(backward.context(), {.d_qkv = packed_qkv(d_qkv.data(), s),
                                            .d_out = x.d_out.data(),
                                            .qkv = packed_qkv(x.qkv.data(), s),
                                            .out = out.data(),
                                            .lse = lse.as<float>(),
                                            .shape = s});
    attention_sinks_backward(sums.context(), call);
    const AttentionValues want = attention_reference(s, x.qkv.doubles(), x.d_out.doubles(), {}, sinks.doubles());
    EXPECT_LT(relative_error(out.doubles(), want.out), tolerance(t));
    EXPECT_LT(relative_error(lse.doubles(), want.lse), 1e-5);
    for (int part = 0; part < 3; ++part)
      EXPECT_LT(relative_error(part_of(d_qkv.doubles(), s, part), part_of(want.d_qkv, s, part)), 1.5 * tolerance(t)) << "qkv"[part];
    for (std::size_t h = 0; h < want.d_sinks.size(); ++h)
      EXPECT_NEAR(d_sinks.get(static_cast<std::int64_t>(h)), want.d_sinks[h], 4 * tolerance(t) * want.sink_terms[h] + 1e-6) << h;
  }
}
TEST(AttentionSinks, JoinAttentionAsAColumnOfScores) {
  for (DType t : {DType::f32, DType::bf16, DType::f16}) check_chain(t);
}

TEST(AttentionSinks, ReferenceGradientMatchesFiniteDifferences) {
  const AttentionShape s{.B = 2, .T = 7, .H = 4, .G = 2, .D = 4, .window = 5};
  const std::vector<double> qkv = doubles(random_values<float>(2 * 7 * 8 * 4, 1)), d_out = doubles(random_values<float>(2 * 7 * 4 * 4, 2));
  const std::vector<double> sinks = doubles(random_values<float>(4, 3));
  const AttentionValues want = attention_reference(s, qkv, d_out, {}, sinks);
  const auto by_qkv =
      finite_differences(qkv, [&](const std::vector<double>& v) { return dot(d_out, attention_reference(s, v, {}, {}, sinks).out); });
  const auto by_sinks =
      finite_differences(sinks, [&](const std::vector<double>& v) { return dot(d_out, attention_reference(s, qkv, {}, {}, v).out); });
  for (std::size_t i = 0; i < qkv.size(); ++i) EXPECT_NEAR(want.d_qkv[i], by_qkv[i], 1e-7);
  for (std::size_t i = 0; i < sinks.size(); ++i) EXPECT_NEAR(want.d_sinks[i], by_sinks[i], 1e-7);
}

template <class T>
void same_bits(const Case& c) {
  expect_same_bits([&] {
    Trial<T> run(c);
    run.forward(), run.backward();
    return digest(run.out, run.lse, run.d_sinks);
  });
}
TEST(AttentionSinks, SameBitsForAnyThreadCount) { same_bits<float>({3, 701, 3, 8}), same_bits<bf16>({2, 150, 20, 64}); }

TEST(AttentionSinks, RefuseAShortWorkspace) {
  const Trial<float> run({1, 77, 7, 64});
  EXPECT_THROW(attention_sinks_backward({}, run.backward_arguments()), Error);
}

}  // namespace
}  // namespace tessera::kernels::testing::attention_sinks_test
