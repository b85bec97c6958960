#include "rope_cases.hpp"

#include "base/check.hpp"

namespace tessera::kernels::testing::rope_test {
namespace {

/// The frequencies of Llama 3.1 as its authors define them, in fp64: long waves are slowed by `factor`, those between blend smoothly.
double llama3_frequency(double f, const RopeScaling& s) {
  double wavelength = 2 * M_PI / f, context = static_cast<double>(s.original_context);
  if (wavelength < context / s.high_freq_factor) return f;
  if (wavelength > context / s.low_freq_factor) return f / s.factor;
  double smooth = (context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * f / s.factor + smooth * f;
}

/// YaRN (arXiv:2309.00071, section 3.2): how much of a wave is left depends on how often it turns, between pairs that are rounded outwards,
/// or not.
double yarn_frequency(std::int64_t i, std::int64_t D, double theta, double f, const RopeScaling& s) {
  auto pair_of = [&](double turns) {
    // theta^(-2i/D) context / 2 pi = turns, for i.
    return static_cast<double>(D) / 2 * std::log(static_cast<double>(s.original_context) / (2 * M_PI * turns)) / std::log(theta);
  };
  const double first = pair_of(s.beta_fast), last = pair_of(s.beta_slow);
  double low = std::max(0.0, s.truncate ? std::floor(first) : first);
  double high = std::min(static_cast<double>(D - 1), s.truncate ? std::ceil(last) : last);
  double left = 1 - std::clamp((static_cast<double>(i) - low) / std::max(high - low, 0.001), 0.0, 1.0);
  return f * left + f / s.factor * (1 - left);
}

double frequency(std::int64_t i, std::int64_t D, double theta, const RopeScaling& s) {
  double share = 2.0 * static_cast<double>(i) / static_cast<double>(D), f = std::pow(theta, -share);
  if (s.method == RopeMethod::llama3) return llama3_frequency(f, s);
  if (s.method == RopeMethod::linear) return f / s.factor;
  if (s.method == RopeMethod::yarn) return yarn_frequency(i, D, theta, f, s);
  if (s.method == RopeMethod::longrope)
    return f / (s.sequence > s.original_context ? s.long_factors : s.short_factors)[static_cast<std::size_t>(i)];
  if (s.method != RopeMethod::dynamic || s.sequence <= s.original_context) return f;
  double longer = s.factor * static_cast<double>(s.sequence) / static_cast<double>(s.original_context) - (s.factor - 1);
  return std::pow(theta * std::pow(longer, static_cast<double>(D) / static_cast<double>(D - 2)), -share);
}

double amplitude(const RopeScaling& s) {
  if (s.method != RopeMethod::yarn && s.method != RopeMethod::longrope) return 1;
  if (s.attention_factor > 0) return s.attention_factor;
  if (s.method == RopeMethod::longrope) return std::sqrt(1 + std::log(s.factor) / std::log(static_cast<double>(s.original_context)));
  return 0.1 * std::log(s.factor) + 1;
}

struct TableCase {
  std::int64_t D;
  double theta;
  RopeScaling scaling;
};
constexpr std::array short_factors = {1.0, 1.08, 1.25, 2.0}, long_factors = {1.0, 1.5, 12.75, 63.5};
const TableCase table_cases[] = {
    {2, 10000, {}},
    {48, 10000, {}},
    {64, 500000, {.method = RopeMethod::llama3, .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 8192}},
    {128, 500000, {.method = RopeMethod::llama3, .factor = 32, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 8192}},
    {16, 10000, {.method = RopeMethod::llama3, .factor = 4, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 64}},
    {48, 10000, {.method = RopeMethod::linear, .factor = 3}},
    {48, 10000, {.method = RopeMethod::dynamic, .factor = 2, .original_context = 64, .sequence = 64}},
    {48, 10000, {.method = RopeMethod::dynamic, .factor = 2, .original_context = 64, .sequence = 1077}},
    {64, 1e6, {.method = RopeMethod::yarn, .factor = 4, .original_context = 32768}},
    {64, 150000, {.method = RopeMethod::yarn, .factor = 32, .original_context = 4096, .truncate = false}},
    {128, 10000, {.method = RopeMethod::yarn, .factor = 40, .original_context = 4096, .attention_factor = 1}},
    {8, 10000, {.method = RopeMethod::yarn, .factor = 2, .original_context = 16, .beta_fast = 2}},
    {8,
     10000,
     {.method = RopeMethod::longrope,
      .factor = 32,
      .original_context = 64,
      .sequence = 64,
      .short_factors = short_factors,
      .long_factors = long_factors}},
    {8,
     250000,
     {.method = RopeMethod::longrope,
      .factor = 32,
      .original_context = 64,
      .sequence = 65,
      .short_factors = short_factors,
      .long_factors = long_factors}},
    {8,
     10000,
     {.method = RopeMethod::longrope,
      .factor = 32,
      .original_context = 64,
      .attention_factor = 1.5,
      .sequence = 2,
      .short_factors = short_factors,
      .long_factors = long_factors}}};

// Angles carry the rounding of a frequency whose exponent is held in fp32, as in Hugging Face: log(theta) ulp of the angle.
TEST(Rope, TableHoldsCosineAndSineOfPositionTimesFrequency) {
  for (const TableCase& c : table_cases) {
    for (std::int64_t first : {0, 1000}) {
      constexpr std::int64_t T = 77;
      auto table = poisoned<float>(T * c.D);
      rope_table(table.data(), first, T, c.D, c.theta, c.scaling);
      for (std::int64_t t = 0; t < T; ++t) {
        for (std::int64_t i = 0; i < c.D / 2; ++i) {
          double angle = static_cast<double>(first + t) * frequency(i, c.D, c.theta, c.scaling);
          const double scale = amplitude(c.scaling);
          // A base that grows is rounded too.
          double allowed = scale * (1.3e-7 + angle * (std::log(c.theta) + 8) * 0x1p-25);
          ASSERT_NEAR(static_cast<double>(table[(t * c.D / 2 + i) * 2]), scale * std::cos(angle), allowed) << c.D << " " << t << " " << i;
          ASSERT_NEAR(static_cast<double>(table[(t * c.D / 2 + i) * 2 + 1]), scale * std::sin(angle), allowed)
              << c.D << " " << t << " " << i;
        }
      }
    }
  }
}

// All three bands of the scaling occur, so that the test above can fail on each.
TEST(Rope, ScalingKeepsShortWavesAndSlowsLongOnes) {
  const TableCase& c = table_cases[2];
  int kept = 0, slowed = 0, between = 0;
  for (std::int64_t i = 0; i < c.D / 2; ++i) {
    double ratio = frequency(i, c.D, c.theta, {}) / frequency(i, c.D, c.theta, c.scaling);
    (ratio == 1 ? kept : std::abs(ratio - 8) < 1e-12 ? slowed : between) += 1;
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(slowed, 0);
  EXPECT_GT(between, 0);
}

template <class T>
struct Trial : RopeInputs<T> {
  using RopeInputs<T>::RopeInputs;
  void rotate(bool inverse) { rope({}, this->arguments(inverse)); }
};

/// Rotation by +angle or -angle with the table's own values; elements beyond the heads stay, and those of heads that are not turned.
std::vector<double> reference(const std::vector<double>& x, const std::vector<float>& table, const RopeCase& c, double direction) {
  std::vector<double> out = x;
  for (std::int64_t m = 0; m < c.M; ++m) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      for (std::int64_t i = 0; i < c.turned() / 2; ++i) {
        auto a = static_cast<std::size_t>(m * c.stride + h * c.D + (c.neighbours ? 2 * i : i));
        auto b = a + static_cast<std::size_t>(c.neighbours ? 1 : c.turned() / 2);
        auto pair = static_cast<std::size_t>(m % c.T * c.turned() + 2 * i);
        double cos = static_cast<double>(table[pair]), sin = direction * static_cast<double>(table[pair + 1]);
        out[a] = x[a] * cos - x[b] * sin;
        out[b] = x[b] * cos + x[a] * sin;
      }
    }
  }
  return out;
}

template <class T>
void check_against_reference() {
  for (const RopeCase& c : rope_cases) {
    SCOPED_TRACE(::testing::Message() << c);
    for (bool inverse : {false, true}) {
      Trial<T> trial(c);
      auto expected = reference(doubles(trial.x), trial.table, c, inverse ? -1 : 1);
      trial.rotate(inverse);
      EXPECT_LT(relative_error(trial.x, expected), tolerance<T>());
    }
  }
}
TEST(Rope, MatchesReferenceFp32) { check_against_reference<float>(); }
TEST(Rope, MatchesReferenceBf16) { check_against_reference<bf16>(); }
TEST(Rope, MatchesReferenceFp16) { check_against_reference<f16>(); }

// Positions restart with documents: the bits are those of a table that has a row for each token.
template <class T>
void check_documents() {
  for (const RopeCase& c : rope_cases) {
    SCOPED_TRACE(::testing::Message() << c);
    Trial<T> trial(c), by_token(c);
    const auto starts = trial.starts();
    by_token.table = rotations_of(trial.table, starts, c.T, c.turned());
    Rope p = trial.arguments(false);
    p.document_starts = starts.data();
    rope({}, p);
    by_token.c.T = c.M;
    by_token.rotate(false);
    EXPECT_EQ(digest(trial.x), digest(by_token.x));
  }
}
TEST(Rope, PositionsRestartWithDocuments) { check_documents<float>(), check_documents<bf16>(), check_documents<f16>(); }

// What lies beyond the rotated heads (value heads, padding) keeps its bits, and so do features of a head that are not turned.
TEST(Rope, LeavesTheRestOfTheRowAlone) {
  for (const RopeCase& c : rope_cases) {
    Trial<float> trial(c);
    const std::vector<float> before = trial.x;
    trial.rotate(false);
    for (std::int64_t m = 0; m < c.M; ++m) {
      const std::int64_t at = m * c.stride + c.heads * c.D;
      ASSERT_EQ(std::memcmp(trial.x.data() + at, before.data() + at, static_cast<std::size_t>(c.stride - c.heads * c.D) * sizeof(float)), 0)
          << c;
      for (std::int64_t h = 0; h < c.heads; ++h) {
        const std::int64_t rest = m * c.stride + h * c.D + c.turned();
        ASSERT_EQ(std::memcmp(trial.x.data() + rest, before.data() + rest, static_cast<std::size_t>(c.D - c.turned()) * sizeof(float)), 0)
            << c;
      }
    }
  }
}

// The backward pass is the inverse rotation: the transpose of an orthogonal map.
TEST(Rope, InverseIsTheGradient) {
  for (const RopeCase& c : {RopeCase{4, 2, 2, 10, 25}, RopeCase{4, 2, 2, 10, 25, 6}, RopeCase{4, 2, 2, 10, 25, 6, true}}) {
    Trial<float> trial(c);
    std::vector<double> d_out = doubles(trial.x), x = doubles(random_values<float>(c.M * c.stride, 2));
    auto expected = finite_differences(x, [&](const std::vector<double>& v) { return dot(d_out, reference(v, trial.table, c, 1)); });
    trial.rotate(true);
    EXPECT_LT(relative_error(trial.x, expected), 2e-6) << c;
  }
}

TEST(Rope, SameBitsForAnyThreadCount) {
  expect_same_bits([] {
    Trial<float> trial({1500, 500, 3, 48, 200});
    Trial<bf16> half({1500, 500, 3, 48, 200}), neighbours({1500, 500, 3, 48, 200, 10, true});
    trial.rotate(false), half.rotate(true), neighbours.rotate(true);
    return digest(trial.table, trial.x, half.x, neighbours.x);
  });
}

TEST(Rope, RefusesPartsThatAHeadDoesNotHave) {
  for (const std::int64_t rotated : {-2, 3, 50}) {
    Trial<float> trial({1, 1, 1, 48, 48});
    Rope p = trial.arguments(false);
    p.rotated = rotated;
    EXPECT_THROW(rope({}, p), Error) << rotated;
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::rope_test
