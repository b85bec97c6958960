#include "wide_qk_norm_cases.hpp"

#include "base/check.hpp"

namespace tessera::kernels::testing::wide_qk_norm_test {
namespace {

using Case = WideQkCase;

/// The definition, over all parts, in fp64: of the query features of a row (or its key features) what the kernels make of each part.
struct Reference {
  std::vector<std::vector<double>> out, d_x, d_q_norm, d_k_norm;  ///< of each part
  double largest_term = 0;                                        ///< of d_x: with few features much of it cancels
};
template <class T>
Reference reference(const std::vector<WideQkInputs<T>>& inputs) {
  const Case& c = inputs[0].c;
  Reference r;
  for (const auto& part : inputs) {
    r.out.push_back(doubles(part.x)), r.d_x.push_back(doubles(part.d));
    r.d_q_norm.push_back(doubles(part.d_q_norm)), r.d_k_norm.push_back(doubles(part.d_k_norm));
  }
  for (std::int64_t m = 0; m < c.M; ++m)
    for (const bool key : {false, true}) {
      const std::int64_t begin = m * c.stride() + (key ? c.Q : 0), count = key ? c.K : c.Q;
      const auto width = static_cast<double>(c.parts * count);
      const auto over = [&](auto&& f) {
        for (std::size_t p = 0; p < inputs.size(); ++p)
          for (std::int64_t i = 0; i < count; ++i) {
            const auto at = static_cast<std::size_t>(begin + i), column = static_cast<std::size_t>(i);
            const double weight = static_cast<double>(static_cast<float>((key ? inputs[p].k_norm : inputs[p].q_norm)[column]));
            f(p, at, column, static_cast<double>(static_cast<float>(inputs[p].x[at])),
              static_cast<double>(static_cast<float>(inputs[p].d[at])), weight + static_cast<double>(c.offset));
          }
      };
      double squares = 0, dots = 0;
      over([&](std::size_t, std::size_t, std::size_t, double x, double d, double w) { squares += x * x, dots += d * x * w; });
      const double rstd = 1 / std::sqrt(squares / width + static_cast<double>(wide_qk_eps));
      over([&](std::size_t p, std::size_t at, std::size_t column, double x, double d, double w) {
        r.out[p][at] = x * rstd * w;
        r.d_x[p][at] = rstd * (d * w - x * rstd * rstd * dots / width);
        r.largest_term = std::max(r.largest_term, std::abs(rstd * d * w));
        (key ? r.d_k_norm : r.d_q_norm)[p][column] += d * x * rstd;
      });
    }
  return r;
}

/// All parts, whose sums meet as the ranks' do.
template <class T>
struct Trial {
  std::vector<WideQkInputs<T>> parts;
  std::vector<std::vector<T>> out;
  std::vector<float> sums, dots;

  explicit Trial(const Case& c) : parts(wide_qk_inputs<T>(c)), sums(poisoned<float>(c.parts * c.M * 2)), dots(sums) {
    for (const auto& part : parts) out.push_back(poisoned<T>(static_cast<std::int64_t>(part.x.size())));
  }
  float* of_part(std::vector<float>& all, std::size_t part) { return all.data() + static_cast<std::int64_t>(part) * parts[0].c.M * 2; }
  void forward(bool in_place = false) {
    for (std::size_t p = 0; p < parts.size(); ++p)
      wide_qk_sums({}, {.sums = of_part(sums, p), .x = parts[p].x.data(), .shape = parts[p].shape()});
    for (std::size_t p = 0; p < parts.size(); ++p) {
      if (in_place) out[p] = parts[p].x;
      wide_qk_norm({}, {.out = out[p].data(),
                        .x = in_place ? out[p].data() : parts[p].x.data(),
                        .sums = sums.data(),
                        .q_norm = parts[p].q_norm.data(),
                        .k_norm = parts[p].k_norm.data(),
                        .shape = parts[p].shape()});
    }
  }
  void backward() {
    for (std::size_t p = 0; p < parts.size(); ++p)
      wide_qk_dots({}, {.dots = of_part(dots, p),
                        .d = parts[p].d.data(),
                        .x = parts[p].x.data(),
                        .q_norm = parts[p].q_norm.data(),
                        .k_norm = parts[p].k_norm.data(),
                        .shape = parts[p].shape()});
    for (auto& part : parts) {
      const WideQkNormBackward b{.d = part.d.data(),
                                 .d_q_norm = part.d_q_norm.data(),
                                 .d_k_norm = part.d_k_norm.data(),
                                 .x = part.x.data(),
                                 .sums = sums.data(),
                                 .dots = dots.data(),
                                 .q_norm = part.q_norm.data(),
                                 .k_norm = part.k_norm.data(),
                                 .shape = part.shape()};
      Workspace workspace(wide_qk_norm_backward_workspace_bytes(b));
      wide_qk_norm_backward(workspace.context(), b);
      EXPECT_TRUE(workspace.intact());
    }
  }
};

template <class T>
void check_against_reference() {
  for (const Case& c : wide_qk_cases) {
    SCOPED_TRACE(::testing::Message() << c);
    Trial<T> run(c), over(c);
    const Reference expected = reference(run.parts);
    run.forward(), over.forward(true);
    run.backward();
    for (std::size_t p = 0; p < run.parts.size(); ++p) {
      EXPECT_LT(relative_error(run.out[p], expected.out[p]), tolerance<T>());
      EXPECT_EQ(digest(over.out[p]).hex(), digest(run.out[p]).hex()) << "in place";
      EXPECT_LT(relative_error(run.parts[p].d, expected.d_x[p], expected.largest_term), tolerance<T>());
      EXPECT_LT(relative_error(run.parts[p].d_q_norm, expected.d_q_norm[p]), 3e-6);
      EXPECT_LT(relative_error(run.parts[p].d_k_norm, expected.d_k_norm[p]), 3e-6);
    }
  }
}
TEST(WideQkNorm, MatchesReferenceFp32) { check_against_reference<float>(); }
TEST(WideQkNorm, MatchesReferenceBf16) { check_against_reference<bf16>(); }
TEST(WideQkNorm, MatchesReferenceFp16) { check_against_reference<f16>(); }

TEST(WideQkNorm, ReferenceGradientMatchesFiniteDifferences) {
  const Case c{2, 5, 3, 1, 2, 1};
  const auto inputs = wide_qk_inputs<float>(c);
  const Reference r = reference(inputs);
  const auto loss = [&](const std::vector<WideQkInputs<float>>& at) {
    const Reference moved = reference(at);
    double sum = 0;
    for (std::size_t p = 0; p < at.size(); ++p)
      for (std::int64_t m = 0; m < c.M; ++m)
        for (std::int64_t i = 0; i < c.Q + c.K; ++i) {
          const auto place = static_cast<std::size_t>(m * c.stride() + i);
          sum += moved.out[p][place] * static_cast<double>(inputs[p].d[place]);
        }
    return sum;
  };
  for (std::size_t p = 0; p < inputs.size(); ++p)
    for (const std::size_t i : {std::size_t{0}, std::size_t{4}, std::size_t{6}, static_cast<std::size_t>(c.stride() + 2)}) {
      auto above = inputs, below = inputs;
      above[p].x[i] += 1.0f / 64, below[p].x[i] -= 1.0f / 64;
      const double step = static_cast<double>(above[p].x[i]) - static_cast<double>(below[p].x[i]);
      EXPECT_NEAR(r.d_x[p][i], (loss(above) - loss(below)) / step, 2e-3 * (1 + std::abs(r.d_x[p][i]))) << p << " " << i;
    }
}

TEST(WideQkNorm, SameBitsForAnyThreadCount) {
  for (const Case& c : {Case{77, 200, 40, 40, 2}, Case{300, 64, 64, 0, 1, 1}}) {
    expect_same_bits([c] {
      Trial<float> run(c);
      Trial<bf16> half(c);
      run.forward(), half.forward();
      run.backward(), half.backward();
      return digest(run.sums, run.dots, run.out[0], run.parts[0].d, run.parts[0].d_q_norm, half.out[0], half.parts[0].d,
                    half.parts[0].d_k_norm);
    });
  }
}

TEST(WideQkNorm, RefusesAShortWorkspace) {
  WideQkNormBackward b;
  b.shape = {.M = 77, .Q = 48, .K = 48, .stride = 96};
  EXPECT_THROW(wide_qk_norm_backward({}, b), Error);
}

}  // namespace
}  // namespace tessera::kernels::testing::wide_qk_norm_test
