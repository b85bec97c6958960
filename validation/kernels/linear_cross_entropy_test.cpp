#include <algorithm>

#include "base/hash.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "validation/kernels/gemm_test_support.hpp"

namespace tessera::kernels {
namespace {
using namespace testing;

struct Case {
  std::int64_t M, C, V, chunk;
  DType dtype = DType::f32;
  bool reproducible = false;
  double logit_scale = 1;
};

struct Inputs {
  Tensor x, weight, d_weight;
  std::vector<std::int32_t> targets;
  explicit Inputs(const Case& s) : x(s.M * s.C, s.dtype), weight(s.V * s.C, s.dtype), d_weight(s.V * s.C, DType::f32) {
    x.randomize(1, s.logit_scale);
    weight.randomize(2);
    d_weight.randomize(3, 1e-3);
    for (std::int64_t i = 0; i < s.M; ++i) targets.push_back(i % 5 == 4 ? no_target : static_cast<std::int32_t>((i * 7919 + 3) % s.V));
  }
};

struct Outputs {
  std::vector<double> losses, d_x, d_weight;
  double loss_sum = std::nan("");
  std::vector<std::byte> bits;
};

constexpr float grad_scale = 1.f / 64;

Outputs run(const Case& s, Inputs in, bool gradients = true) {
  Tensor losses(s.M, DType::f32), d_x(s.M * s.C, s.dtype);
  Outputs o;
  LinearCrossEntropy l{.losses = losses.as<float>(),
                       .loss_sum = &o.loss_sum,
                       .d_x = gradients ? d_x.data() : nullptr,
                       .d_weight = gradients ? in.d_weight.as<float>() : nullptr,
                       .x = in.x.data(),
                       .weight = in.weight.data(),
                       .targets = in.targets.data(),
                       .grad_scale = grad_scale,
                       .M = s.M,
                       .C = s.C,
                       .V = s.V,
                       .chunk = s.chunk,
                       .dtype = s.dtype};
  Workspace w(linear_cross_entropy_workspace_bytes(l));
  linear_cross_entropy(w.context(s.reproducible), l);
  EXPECT_TRUE(w.intact());
  o.losses = losses.doubles();
  o.d_x = d_x.doubles();
  o.d_weight = in.d_weight.doubles();
  for (const Tensor* t : {&losses, &d_x, &in.d_weight}) o.bits.insert(o.bits.end(), t->bytes().begin(), t->bytes().end());
  return o;
}

Outputs run(const Case& s, bool gradients = true) { return run(s, Inputs(s), gradients); }

// In doubles. `x` and `weight` are given so that finite differences can move them.
std::vector<double> reference_losses(const Case& s, const Inputs& in, const std::vector<double>& x, const std::vector<double>& weight,
                                     std::vector<double>* probability = nullptr) {
  std::vector<double> losses;
  for (std::int64_t i = 0; i < s.M; ++i) {
    std::vector<double> logits(static_cast<std::size_t>(s.V));
    for (std::int64_t v = 0; v < s.V; ++v)
      for (std::int64_t c = 0; c < s.C; ++c)
        logits[static_cast<std::size_t>(v)] += x[static_cast<std::size_t>(i * s.C + c)] * weight[static_cast<std::size_t>(v * s.C + c)];
    double most = *std::max_element(logits.begin(), logits.end()), total = 0;
    for (double l : logits) total += std::exp(l - most);
    const std::int32_t target = in.targets[static_cast<std::size_t>(i)];
    losses.push_back(target == no_target ? 0 : std::log(total) + most - logits[static_cast<std::size_t>(target)]);
    if (probability)
      for (double l : logits) probability->push_back(std::exp(l - most) / total);
  }
  return losses;
}

Outputs reference(const Case& s) {
  Inputs in(s);
  Outputs o;
  std::vector<double> x = in.x.doubles(), weight = in.weight.doubles(), p;
  o.losses = reference_losses(s, in, x, weight, &p);
  o.loss_sum = 0;
  for (double l : o.losses) o.loss_sum += l;
  o.d_x.resize(x.size());
  o.d_weight = in.d_weight.doubles();
  for (std::int64_t i = 0; i < s.M; ++i)
    for (std::int64_t v = 0; v < s.V; ++v) {
      if (in.targets[static_cast<std::size_t>(i)] == no_target) continue;
      double d = static_cast<double>(grad_scale) *
                 (p[static_cast<std::size_t>(i * s.V + v)] - (in.targets[static_cast<std::size_t>(i)] == v ? 1 : 0));
      for (std::int64_t c = 0; c < s.C; ++c) {
        auto at_x = static_cast<std::size_t>(i * s.C + c), at_w = static_cast<std::size_t>(v * s.C + c);
        o.d_x[at_x] += d * weight[at_w];
        o.d_weight[at_w] += d * x[at_x];
      }
    }
  return o;
}

TEST(LinearCrossEntropy, MatchesFp64) {
  for (Case s : {Case{1, 8, 2, 4}, Case{1, 48, 1013, 1}, Case{77, 48, 1013, 32}, Case{33, 65, 257, 100},
                 Case{20, 64, 1013, 7, DType::f32, false, 40}})
    for (DType t : {DType::f32, DType::bf16})
      for (bool reproducible : {false, true}) {
        s.dtype = t;
        s.reproducible = reproducible;
        Outputs got = run(s), want = reference(s);
        EXPECT_LT(relative_error(got.losses, want.losses), 1e-5);
        EXPECT_NEAR(got.loss_sum, want.loss_sum, 1e-5 * std::abs(want.loss_sum));
        EXPECT_LT(relative_error(got.d_x, want.d_x), tolerance(t)) << s.M << " " << s.C << " " << s.V << " " << name_of(t);
        EXPECT_LT(relative_error(got.d_weight, want.d_weight), tolerance(t));
      }
}

TEST(LinearCrossEntropy, LossOnlyGivesTheSameLosses) {
  for (DType t : {DType::f32, DType::bf16}) {
    Case s{77, 48, 1013, 20, t};
    Outputs with = run(s), without = run(s, false);
    EXPECT_EQ(with.losses, without.losses);
    EXPECT_EQ(with.loss_sum, without.loss_sum);
    EXPECT_EQ(without.d_weight, Inputs(s).d_weight.doubles());
  }
}

// The gradient of the summed loss, by central differences of the fp64 reference.
TEST(LinearCrossEntropy, FiniteDifferences) {
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
        std::vector<double> x = in.x.doubles(), w = in.weight.doubles();
        (move_x ? x : w)[i] += by;
        return loss(x, w);
      };
      numeric.push_back((moved(1e-5) - moved(-1e-5)) / 2e-5);
      analytic.push_back(gradient[i] - (before.empty() ? 0 : before[i]));
    }
    EXPECT_LT(relative_error(analytic, numeric), 1e-5);
  };
  check(true, got.d_x, {});
  check(false, got.d_weight, in.d_weight.doubles());
}

// Not bit for bit: oneDNN's order of sums over C depends on the rows of a chunk.
TEST(LinearCrossEntropy, AnyChunkGivesTheSameLosses) {
  for (DType t : {DType::f32, DType::bf16}) {
    std::vector<double> whole = run({77, 48, 1013, 77, t, true}).losses;
    for (std::int64_t chunk : {1, 7, 64}) EXPECT_LT(relative_error(run({77, 48, 1013, chunk, t, true}).losses, whole), 1e-6) << chunk;
  }
}

// A confident model: most probabilities are far below what fp32 holds normally. Subnormal gradients would slow the products after this by
// far.
TEST(SoftmaxLossRows, LeavesNoSubnormalGradient) {
  constexpr std::int64_t V = 1013;
  std::vector<float> logits(V), losses(1);
  for (std::int64_t i = 0; i < V; ++i) logits[static_cast<std::size_t>(i)] = -0.2f * static_cast<float>(i);
  const std::int32_t target = 3;
  softmax_loss_rows({}, {.losses = losses.data(),
                         .logits = logits.data(),
                         .d_logits = logits.data(),
                         .targets = &target,
                         .grad_scale = 1e-3f,
                         .rows = 1,
                         .V = V,
                         .dtype = DType::f32});
  int normal = 0;
  for (float g : logits) {
    EXPECT_TRUE(g == 0 || std::isnormal(g)) << g;
    normal += g != 0;
  }
  EXPECT_GT(normal, 300) << "what fp32 holds must stay";
}

// A micro-batch that only fills a place: whatever its tokens are, it must change no bit.
TEST(LinearCrossEntropy, NoTargetsNoChange) {
  for (DType t : {DType::f32, DType::bf16}) {
    Case s{7, 48, 1013, 3, t};
    Inputs in(s);
    std::fill(in.targets.begin(), in.targets.end(), no_target);
    Outputs got = run(s, in);
    EXPECT_EQ(got.loss_sum, 0);
    for (double l : got.losses) EXPECT_EQ(l, 0);
    for (double d : got.d_x) EXPECT_EQ(d, 0);
    EXPECT_EQ(got.d_weight, Inputs(s).d_weight.doubles());
  }
}

TEST(LinearCrossEntropy, RefusesBadTargets) {
  Case s{4, 8, 10, 2};
  Inputs in(s);
  in.targets[2] = 10;
  Tensor losses(s.M, DType::f32);
  LinearCrossEntropy l{.losses = losses.as<float>(),
                       .x = in.x.data(),
                       .weight = in.weight.data(),
                       .targets = in.targets.data(),
                       .M = s.M,
                       .C = s.C,
                       .V = s.V,
                       .chunk = s.chunk};
  Workspace w(linear_cross_entropy_workspace_bytes(l));
  EXPECT_ANY_THROW(linear_cross_entropy(w.context(), l));
}

TEST(LinearCrossEntropy, SameBitsTwice) {
  for (DType t : {DType::f32, DType::bf16}) {
    Case s{77, 48, 1013, 20, t};
    EXPECT_EQ(run(s).bits, run(s).bits);
  }
}

TEST(LinearCrossEntropy, Digest) {
  Hasher h;
  for (DType t : {DType::f32, DType::bf16})
    for (Case s : {Case{1, 48, 1013, 8, t, true}, Case{77, 64, 1013, 32, t, true}, Case{300, 96, 5000, 300, t, true}}) {
      Outputs o = run(s);
      h.update(o.bits.data(), o.bits.size());
      h.update(&o.loss_sum, sizeof o.loss_sum);
    }
  print_digest(h.digest().hex());
}
TEST(LinearCrossEntropy, SameBitsForAnyThreadCount) { expect_same_digest("LinearCrossEntropy.Digest"); }

}  // namespace
}  // namespace tessera::kernels

int main(int argc, char** argv) { return tessera::kernels::testing::run_with_kokkos(argc, argv); }
