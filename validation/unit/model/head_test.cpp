// The text of the head on the host's kernels: loss and gradients of chunks of tokens against fp64.
#include <algorithm>

#include "base/hash.hpp"
#include "kernels/step/step.hpp"
#include "validation/kernels/gemm_test_support.hpp"
#include "validation/unit/segment_run.hpp"

namespace tessera::head_test {
namespace {
using namespace kernels::testing;
using enum ValueKind;

struct Case {
  std::int64_t M, C, V, chunk;
  DType dtype = DType::f32;
  bool reproducible = false;
  double logit_scale = 1;
  std::int64_t at_once = 0;  ///< rows of a chunk whose logits are made at once; 0: all
  bool bias = false;
  bool masked = false;  ///< long runs of rows do not count
};

struct Inputs {
  Tensor x, weight, d_weight, bias;
  std::vector<std::int32_t> targets;
  std::vector<float> weights;  ///< mostly 1; some a fraction, some 0
  explicit Inputs(const Case& s) : x(s.M * s.C, s.dtype), weight(s.V * s.C, s.dtype), d_weight(s.V * s.C, DType::f32), bias(s.V, s.dtype) {
    x.randomize(1);
    weight.randomize(2, s.logit_scale);
    d_weight.randomize(3, 1e-3);
    bias.randomize(4, s.bias ? 2 : 0);
    for (std::int64_t i = 0; i < s.M; ++i) {
      targets.push_back(static_cast<std::int32_t>((i * 7919 + 3) % s.V));
      weights.push_back(i % 5 == 4 || (s.masked && i % 300 < 220) ? 0.0f : i % 7 == 3 ? 0.375f : 1.0f);
    }
  }
};

struct Outputs {
  std::vector<double> normed, losses, d_normed, d_weight, d_bias;
  double loss_sum = 0;
  std::vector<std::byte> bits;
};

constexpr float grad_scale = 1.f / 64;

Segment head_of(const Case& s) {
  return head_segment({.B = 1,
                       .T = s.M,
                       .C = s.C,
                       .V = s.V,
                       .dtype = s.dtype,
                       .head_bias = s.bias,
                       .loss_chunk = std::min(s.chunk, s.M),
                       .logit_rows = s.at_once});
}

/// Rows that count, which the pass has moved to the front, where they were; the others, which it does not read, as zeros.
std::vector<double> in_place(const Inputs& in, const std::vector<double>& front) {
  std::vector<double> rows(front.size());
  const std::size_t C = front.size() / in.weights.size();
  auto next = front.begin();
  for (std::size_t i = 0; i < in.weights.size(); ++i)
    if (in.weights[i] != 0) std::copy_n(next, C, rows.begin() + static_cast<std::ptrdiff_t>(i * C)), next += static_cast<std::ptrdiff_t>(C);
  return rows;
}

/// The training pass, or that of an evaluation.
Outputs run(const Case& s, const Inputs& in, bool gradients = true) {
  const Segment segment = head_of(s);
  test::SegmentRun head(segment);
  Tensor ones(s.C, s.dtype);
  for (std::int64_t c = 0; c < s.C; ++c) ones.set(c, 1);
  head.make(stream_in, "stream", in.x.bytes());
  head.make(weight, "head.norm", ones.bytes());
  head.make(weight_gradient, "head.norm", 4 * s.C);
  head.make(weight, "head.weight", in.weight.bytes());
  head.make(weight_gradient, "head.weight", in.d_weight.bytes());
  head.make(weight, "head.bias", in.bias.bytes());
  head.make(weight_gradient, "head.bias", 4 * s.V);
  head.make(targets, "targets", 4 * s.M);
  std::ranges::copy(in.targets, head.at<std::int32_t>(targets, "targets"));
  head.make(row_weights, "row_weights", 4 * s.M);
  std::ranges::copy(in.weights, head.at<float>(row_weights, "row_weights"));
  head.make(scalars, "scalars", sizeof(kernels::StepScalars));
  *head.at<kernels::StepScalars>(scalars, "scalars") = {};

  const Kept nothing(segment.values.size(), KeptBy::none);
  SegmentPass pass = gradients ? backward_pass(segment, 0, nothing) : forward_pass(segment, 0, nothing);
  for (Operand& o : pass.operands)
    if (segment.at(o.value).kind == weight_gradient) o.access = segment.at(o.value).name == "head.bias" ? Access::write : Access::add;
  EXPECT_TRUE(head.run(pass, grad_scale, s.reproducible));

  Outputs o;
  o.normed = in_place(in, head.doubles(activation, "normed", s.dtype));
  o.losses = head.doubles(activation, "losses", DType::f32);
  o.loss_sum = *head.at<double>(activation, "loss_sum");
  o.d_weight = head.doubles(weight_gradient, "head.weight", DType::f32);
  if (gradients && s.bias) o.d_bias = head.doubles(weight_gradient, "head.bias", DType::f32);
  if (gradients) o.d_normed = head.doubles(activation, "d_normed", s.dtype);
  for (const auto& [kind, name] :
       {std::pair(activation, "losses"), std::pair(activation, "d_normed"), std::pair(weight_gradient, "head.weight")})
    if (gradients || std::string(name) == "losses") {
      const auto bytes = head.bytes(kind, name);
      o.bits.insert(o.bits.end(), bytes.begin(), bytes.end());
    }
  return o;
}

Outputs run(const Case& s, bool gradients = true) { return run(s, Inputs(s), gradients); }

// In doubles. `x` and `weight` are given so that finite differences can move them.
std::vector<double> reference_losses(const Case& s, const Inputs& in, const std::vector<double>& x, const std::vector<double>& weight,
                                     std::vector<double>* probability = nullptr) {
  std::vector<double> losses;
  for (std::int64_t i = 0; i < s.M; ++i) {
    std::vector<double> logits = in.bias.doubles();
    for (std::int64_t v = 0; v < s.V; ++v)
      for (std::int64_t c = 0; c < s.C; ++c)
        logits[static_cast<std::size_t>(v)] += x[static_cast<std::size_t>(i * s.C + c)] * weight[static_cast<std::size_t>(v * s.C + c)];
    double most = *std::max_element(logits.begin(), logits.end()), total = 0;
    for (double l : logits) total += std::exp(l - most);
    const std::int32_t target = in.targets[static_cast<std::size_t>(i)];
    losses.push_back(static_cast<double>(in.weights[static_cast<std::size_t>(i)]) *
                     (std::log(total) + most - logits[static_cast<std::size_t>(target)]));
    if (probability)
      for (double l : logits) probability->push_back(std::exp(l - most) / total);
  }
  return losses;
}

/// From the normed rows that the pass saw.
Outputs reference(const Case& s, const std::vector<double>& x) {
  const Inputs in(s);
  Outputs o;
  std::vector<double> weight = in.weight.doubles(), p;
  o.losses = reference_losses(s, in, x, weight, &p);
  o.loss_sum = 0;
  for (double l : o.losses) o.loss_sum += l;
  o.d_normed.resize(x.size());
  o.d_weight = in.d_weight.doubles();
  if (s.bias) o.d_bias.resize(static_cast<std::size_t>(s.V));
  for (std::int64_t i = 0; i < s.M; ++i)
    for (std::int64_t v = 0; v < s.V; ++v) {
      double d = static_cast<double>(in.weights[static_cast<std::size_t>(i)]) * static_cast<double>(grad_scale) *
                 (p[static_cast<std::size_t>(i * s.V + v)] - (in.targets[static_cast<std::size_t>(i)] == v ? 1 : 0));
      if (s.bias) o.d_bias[static_cast<std::size_t>(v)] += d;
      for (std::int64_t c = 0; c < s.C; ++c) {
        auto at_x = static_cast<std::size_t>(i * s.C + c), at_w = static_cast<std::size_t>(v * s.C + c);
        o.d_normed[at_x] += d * weight[at_w];
        o.d_weight[at_w] += d * x[at_x];
      }
    }
  return o;
}

TEST(Head, MatchesFp64) {
  for (Case s : {Case{1, 8, 2, 4}, Case{1, 48, 1013, 1}, Case{77, 48, 1013, 32}, Case{33, 65, 257, 100},
                 Case{20, 64, 1013, 7, DType::f32, false, 40}, Case{77, 48, 1013, 32, DType::f32, false, 1, 12},
                 Case{.M = 77, .C = 48, .V = 257, .chunk = 32, .at_once = 12, .bias = true},
                 Case{.M = 9, .C = 16, .V = 64, .chunk = 9, .bias = true},
                 Case{.M = 1100, .C = 24, .V = 65, .chunk = 512, .bias = true, .masked = true},
                 Case{.M = 1100, .C = 24, .V = 65, .chunk = 128, .at_once = 32, .masked = true}})
    for (DType t : {DType::f32, DType::bf16, DType::f16})
      for (bool reproducible : {false, true}) {
        s.dtype = t;
        s.reproducible = reproducible;
        const Outputs got = run(s), want = reference(s, got.normed);
        EXPECT_LT(relative_error(got.losses, want.losses), 1e-5);
        EXPECT_NEAR(got.loss_sum, want.loss_sum, 1e-5 * std::abs(want.loss_sum));
        EXPECT_LT(relative_error(got.d_normed, want.d_normed), tolerance(t)) << s.M << " " << s.C << " " << s.V << " " << name_of(t);
        EXPECT_LT(relative_error(got.d_weight, want.d_weight), tolerance(t));
        EXPECT_EQ(got.d_bias.size(), want.d_bias.size());
        if (s.bias) {
          EXPECT_LT(relative_error(got.d_bias, want.d_bias), tolerance(t));
        }
      }
}

TEST(Head, LossOnlyGivesTheSameLosses) {
  for (DType t : {DType::f32, DType::bf16}) {
    Case s{.M = 77, .C = 48, .V = 1013, .chunk = 20, .dtype = t, .at_once = 8};
    Outputs with = run(s), without = run(s, false);
    EXPECT_EQ(with.losses, without.losses);
    EXPECT_EQ(with.loss_sum, without.loss_sum);
    EXPECT_EQ(without.d_weight, Inputs(s).d_weight.doubles());
  }
}

// The gradient of the summed loss, by central differences of the fp64 reference.
TEST(Head, FiniteDifferences) {
  Case s{5, 12, 101, 2};
  Inputs in(s);
  Outputs got = run(s);
  auto loss = [&](const std::vector<double>& x, const std::vector<double>& w) {
    double total = 0;
    for (double l : reference_losses(s, in, x, w)) total += l;
    return total * static_cast<double>(grad_scale);
  };
  auto check = [&](bool move_x, const std::vector<double>& gradient, const std::vector<double>& before) {
    std::vector<double> numeric, analytic;
    for (std::size_t i = 0; i < gradient.size(); i += 13) {
      auto moved = [&](double by) {
        std::vector<double> x = got.normed, w = in.weight.doubles();
        (move_x ? x : w)[i] += by;
        return loss(x, w);
      };
      numeric.push_back((moved(1e-5) - moved(-1e-5)) / 2e-5);
      analytic.push_back(gradient[i] - (before.empty() ? 0 : before[i]));
    }
    EXPECT_LT(relative_error(analytic, numeric), 1e-5);
  };
  check(true, got.d_normed, {});
  check(false, got.d_weight, in.d_weight.doubles());
}

// Not bit for bit: oneDNN's order of sums over C depends on the rows of a chunk.
TEST(Head, AnyChunkGivesTheSameLosses) {
  for (DType t : {DType::f32, DType::bf16}) {
    std::vector<double> whole = run({77, 48, 1013, 77, t, true}).losses;
    for (std::int64_t chunk : {1, 7, 64}) EXPECT_LT(relative_error(run({77, 48, 1013, chunk, t, true}).losses, whole), 1e-6) << chunk;
    EXPECT_LT(relative_error(run({77, 48, 1013, 77, t, true, 1, 16}).losses, whole), 1e-6);
  }
}

// A micro-batch that only fills a place: whatever its tokens are, it must change no bit.
TEST(Head, NoWeightsNoChange) {
  for (DType t : {DType::f32, DType::bf16}) {
    Case s{7, 48, 1013, 3, t};
    Inputs in(s);
    std::ranges::fill(in.weights, 0);
    Outputs got = run(s, in);
    EXPECT_EQ(got.loss_sum, 0);
    for (double l : got.losses) EXPECT_EQ(l, 0);
    for (double d : got.d_normed) EXPECT_EQ(d, 0);
    EXPECT_EQ(got.d_weight, Inputs(s).d_weight.doubles());
  }
}

// Rows that do not count reach no product: whatever they hold, they change no bit.
TEST(Head, RowsWithoutWeightAreNotRead) {
  for (DType t : {DType::f32, DType::bf16})
    for (Case s : {Case{.M = 1100, .C = 24, .V = 65, .chunk = 512, .dtype = t, .masked = true}, Case{77, 48, 1013, 20, t, true}}) {
      const Inputs in(s);
      Inputs dirty(s);
      for (std::int64_t i = 0; i < s.M; ++i)
        if (in.weights[static_cast<std::size_t>(i)] == 0) {
          dirty.targets[static_cast<std::size_t>(i)] = -1;
          for (std::int64_t c = 0; c < s.C; ++c) dirty.x.set(i * s.C + c, std::numeric_limits<double>::quiet_NaN());
        }
      EXPECT_EQ(run(s, in).bits, run(s, dirty).bits);
      EXPECT_EQ(run(s, in, false).losses, run(s, dirty, false).losses);
    }
}

TEST(Head, RefusesBadTargets) {
  const Case s{4, 8, 10, 2};
  Inputs in(s);
  in.targets[2] = 10;
  EXPECT_ANY_THROW(run(s, in));
}

TEST(Head, SameBitsTwice) {
  for (DType t : {DType::f32, DType::bf16}) {
    Case s{77, 48, 1013, 20, t};
    EXPECT_EQ(run(s).bits, run(s).bits);
  }
}

TEST(Head, Digest) {
  Hasher h;
  for (DType t : {DType::f32, DType::bf16})
    for (Case s : {Case{1, 48, 1013, 8, t, true}, Case{77, 64, 1013, 32, t, true}, Case{300, 96, 5000, 300, t, true, 1, 128}}) {
      const Outputs o = run(s);
      h.update(o.bits.data(), o.bits.size());
      h.update(&o.loss_sum, sizeof o.loss_sum);
    }
  print_digest(h.digest().hex());
}
TEST(Head, SameBitsForAnyThreadCount) { expect_same_digest("Head.Digest"); }

}  // namespace
}  // namespace tessera::head_test
