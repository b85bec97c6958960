#include "dispatch_cases.hpp"

#include <set>

#include "base/check.hpp"

namespace tessera::kernels::testing::dispatch_test {
namespace {

using Case = DispatchCase;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

struct Plan {
  Case c;
  std::vector<std::int32_t> experts, counts, offsets, places, sources;
  explicit Plan(const Case& c)
      : c(c),
        experts(random_choices(c)),
        counts(poisoned<std::int32_t>(c.E)),
        offsets(poisoned<std::int32_t>(c.E + 1)),
        places(poisoned<std::int32_t>(c.M * c.k)),
        sources(poisoned<std::int32_t>(c.rows())) {
    const PlanDispatch p{.counts = counts.data(),
                         .offsets = offsets.data(),
                         .places = places.data(),
                         .sources = sources.data(),
                         .experts = experts.data(),
                         .M = c.M,
                         .k = c.k,
                         .E = c.E,
                         .capacity_factor = c.factor(),
                         .rows = c.rows(),
                         .blocks = c.blocks};
    Workspace workspace(plan_dispatch_workspace_bytes(p));
    plan_dispatch(workspace.context(), p);
  }
  std::int64_t rows() const { return c.rows(); }
};

TEST(Dispatch, RowsAreSortedByExpertAndToken) {
  for (const Case& c : dispatch_cases) {
    if (c.blocks > 1) continue;
    SCOPED_TRACE(::testing::Message() << c);
    const Plan plan(c);
    std::int32_t row = 0;
    for (std::int32_t e = 0; e < c.E; ++e) {
      EXPECT_EQ(plan.offsets[size(e)], row);
      std::int32_t count = 0;
      for (std::int32_t i = 0; i < c.M * c.k; ++i) {
        if (plan.experts[size(i)] != e) continue;
        const bool room = count++ < c.capacity;
        EXPECT_EQ(plan.places[size(i)], room ? row : -1) << "choice " << i;
        if (!room) continue;
        EXPECT_EQ(plan.sources[size(row++)], i);
      }
      EXPECT_EQ(plan.counts[size(e)], count);
    }
    EXPECT_EQ(plan.offsets[size(c.E)], row);
    for (std::int64_t r = row; r < plan.rows(); ++r) EXPECT_EQ(plan.sources[size(r)], -1);
  }
}

// In blocks, rows are those of one block, each part of the experts with room of its own.
TEST(Dispatch, BlocksHaveTheRowsOfTheirExperts) {
  for (const Case& c : dispatch_cases)
    for (const std::int64_t blocks : std::set<std::int64_t>{2, 3, 4, std::max<std::int64_t>(2, c.blocks)}) {
      if (c.E % blocks != 0) continue;
      SCOPED_TRACE(::testing::Message() << c << ", here " << blocks);
      const Plan whole({c.M, c.k, c.E, c.capacity, c.C});
      const std::int64_t of_block = c.E / blocks, rows = std::min(c.M * std::min(c.k, of_block), of_block * c.capacity) + 1;
      auto counts = poisoned<std::int32_t>(c.E), offsets = poisoned<std::int32_t>(c.E + 1), places = poisoned<std::int32_t>(c.M * c.k),
           sources = poisoned<std::int32_t>(blocks * rows);
      const PlanDispatch p{.counts = counts.data(),
                           .offsets = offsets.data(),
                           .places = places.data(),
                           .sources = sources.data(),
                           .experts = whole.experts.data(),
                           .M = c.M,
                           .k = c.k,
                           .E = c.E,
                           .capacity_factor = c.factor(),
                           .rows = blocks * rows,
                           .blocks = blocks};
      plan_dispatch({}, p);
      EXPECT_EQ(counts, whole.counts);
      EXPECT_EQ(offsets, whole.offsets);
      std::vector<std::int32_t> expected(size(blocks * rows), -1);
      for (std::int64_t b = 0; b < blocks; ++b)
        for (std::int32_t row = offsets[size(b * of_block)]; row < offsets[size((b + 1) * of_block)]; ++row) {
          const std::int64_t place = b * rows + row - offsets[size(b * of_block)];
          expected[size(place)] = whole.sources[size(row)];
          EXPECT_EQ(places[size(whole.sources[size(row)])], place);
        }
      EXPECT_EQ(sources, expected);
      for (std::size_t i = 0; i < places.size(); ++i) EXPECT_EQ(places[i] < 0, whole.places[i] < 0) << "choice " << i;
      if (rows > 1) {
        PlanDispatch small = p;
        small.rows = blocks * (rows - 2);
        EXPECT_THROW(plan_dispatch({}, small), Error);
      }
    }
}

TEST(Dispatch, RefusesAnExpertThatDoesNotExist) {
  const std::vector<std::int32_t> experts{0, 4};
  std::vector<std::int32_t> out(16);
  EXPECT_THROW(plan_dispatch({}, {.counts = out.data(),
                                  .offsets = out.data() + 3,
                                  .places = out.data() + 8,
                                  .sources = out.data() + 12,
                                  .experts = experts.data(),
                                  .M = 2,
                                  .k = 1,
                                  .E = 3,
                                  .rows = 2}),
               Error);
}

// Rows, drops and room are those of the tokens that are no padding, as if there were no others.
TEST(Dispatch, PaddingTakesNoRowAndNoRoom) {
  for (const Case& c : dispatch_cases) {
    SCOPED_TRACE(::testing::Message() << c);
    const PaddedChoices padded = padded_choices(c);
    const auto M = std::ssize(padded.real);
    if (M == 0) continue;
    std::vector<std::int32_t> alone;
    for (const std::int64_t m : padded.real)
      alone.insert(alone.end(), padded.experts.begin() + m * c.k, padded.experts.begin() + (m + 1) * c.k);
    const auto plan = [&](const std::vector<std::int32_t>& experts, std::int64_t tokens) {
      struct {
        std::vector<std::int32_t> counts, offsets, places, sources;
      } r{poisoned<std::int32_t>(c.E), poisoned<std::int32_t>(c.E + 1), poisoned<std::int32_t>(tokens * c.k),
          poisoned<std::int32_t>(c.rows())};
      plan_dispatch({}, {.counts = r.counts.data(),
                         .offsets = r.offsets.data(),
                         .places = r.places.data(),
                         .sources = r.sources.data(),
                         .experts = experts.data(),
                         .M = tokens,
                         .k = c.k,
                         .E = c.E,
                         .capacity_factor = c.factor(),
                         .rows = c.rows(),
                         .blocks = c.blocks});
      return r;
    };
    const auto with = plan(padded.experts, c.M), without = plan(alone, M);
    EXPECT_EQ(with.counts, without.counts);
    EXPECT_EQ(with.offsets, without.offsets);
    std::vector<std::int32_t> places(size(c.M * c.k), -1);
    for (std::int64_t i = 0; i < M * c.k; ++i) places[size(padded.real[size(i / c.k)] * c.k + i % c.k)] = without.places[size(i)];
    EXPECT_EQ(with.places, places);
    for (std::size_t row = 0; row < with.sources.size(); ++row) {
      const std::int64_t choice = without.sources[row];
      EXPECT_EQ(with.sources[row], choice < 0 ? -1 : padded.real[size(choice / c.k)] * c.k + choice % c.k) << "row " << row;
    }
  }
}

TEST(Dispatch, PaddingAloneHasNoRows) {
  const std::vector<std::int32_t> experts(6, 4);
  auto counts = poisoned<std::int32_t>(4), offsets = poisoned<std::int32_t>(5), places = poisoned<std::int32_t>(6),
       sources = poisoned<std::int32_t>(6);
  plan_dispatch({}, {.counts = counts.data(),
                     .offsets = offsets.data(),
                     .places = places.data(),
                     .sources = sources.data(),
                     .experts = experts.data(),
                     .M = 3,
                     .k = 2,
                     .E = 4,
                     .capacity_factor = 1,
                     .rows = 6});
  EXPECT_EQ(counts, std::vector<std::int32_t>(4, 0));
  EXPECT_EQ(offsets, std::vector<std::int32_t>(5, 0));
  EXPECT_EQ(places, std::vector<std::int32_t>(6, -1));
  EXPECT_EQ(sources, std::vector<std::int32_t>(6, -1));
}

template <class T>
std::vector<T> gathered(const Plan& plan, const std::vector<T>& in) {
  auto out = poisoned<T>(plan.rows() * plan.c.C);
  gather_rows({}, {.out = out.data(),
                   .in = in.data(),
                   .sources = plan.sources.data(),
                   .k = plan.c.k,
                   .rows = plan.rows(),
                   .C = plan.c.C,
                   .dtype = dtype_of<T>()});
  return out;
}

template <class T>
void check_gather() {
  for (const Case& c : dispatch_cases) {
    const Plan plan(c);
    const auto in = random_values<T>(c.M * c.C, 1), out = gathered(plan, in);
    for (std::int64_t r = 0; r < plan.rows(); ++r)
      for (std::int64_t i = 0; i < c.C; ++i) {
        const std::int64_t choice = plan.sources[size(r)];
        EXPECT_EQ(out[size(r * c.C + i)], choice < 0 ? T{} : in[size(choice / c.k * c.C + i)]);
      }
  }
}
TEST(Dispatch, GathersRows) { check_gather<float>(), check_gather<bf16>(), check_gather<f16>(); }

/// Rows, `shared` and addend in fp64, in one sum.
std::vector<double> combined(const Plan& plan, const std::vector<double>& rows, const std::vector<double>& weights,
                             const std::vector<double>& shared, const std::vector<double>& addend, bool weighs_shared = true) {
  const Case& c = plan.c;
  const std::int64_t slots = c.k + (shared.empty() || !weighs_shared ? 0 : 1);
  std::vector<double> out(size(c.M * c.C), 0.0);
  for (std::int64_t m = 0; m < c.M; ++m)
    for (std::int64_t i = 0; i < c.C; ++i) {
      double& sum = out[size(m * c.C + i)];
      for (std::int64_t j = 0; j < c.k; ++j) {
        const std::int64_t row = plan.places[size(m * c.k + j)];
        if (row >= 0) sum += rows[size(row * c.C + i)] * (weights.empty() ? 1 : weights[size(m * slots + j)]);
      }
      if (!shared.empty()) sum += shared[size(m * c.C + i)] * (weights.empty() || !weighs_shared ? 1 : weights[size(m * slots + c.k)]);
      if (!addend.empty()) sum += addend[size(m * c.C + i)];
    }
  return out;
}

template <class T>
void check_combine(bool weighed, bool with_shared, bool with_addend, bool weighs_shared = true) {
  for (const Case& c : dispatch_cases) {
    const Plan plan(c);
    const auto rows = random_values<T>(plan.rows() * c.C, 1), shared = random_values<T>(with_shared ? c.M * c.C : 0, 2);
    const auto weights = random_values<float>(weighed ? c.M * (c.k + (with_shared && weighs_shared)) : 0, 3);
    auto out = random_values<T>(c.M * c.C, 4);
    const auto expected =
        combined(plan, doubles(rows), doubles(weights), doubles(shared), with_addend ? doubles(out) : std::vector<double>{}, weighs_shared);
    combine_rows({}, {.out = out.data(),
                      .rows = rows.data(),
                      .places = plan.places.data(),
                      .weights = weighed ? weights.data() : nullptr,
                      .shared = with_shared ? shared.data() : nullptr,
                      .weighs_shared = weighs_shared,
                      .addend = with_addend ? out.data() : nullptr,
                      .M = c.M,
                      .k = c.k,
                      .C = c.C,
                      .dtype = dtype_of<T>()});
    EXPECT_LT(relative_error(out, expected, 1), tolerance<T>());
  }
}
TEST(Dispatch, CombinesRows) {
  for (const bool weighed : {false, true})
    for (const bool shared : {false, true})
      for (const bool addend : {false, true})
        check_combine<float>(weighed, shared, addend), check_combine<bf16>(weighed, shared, addend),
            check_combine<f16>(weighed, shared, addend);
  check_combine<float>(true, true, true, false), check_combine<bf16>(true, true, false, false);
}

// The sum that gathers d_rows again is the gradient of the copies that gather_rows makes.
TEST(Dispatch, CombineIsTheGradientOfGather) {
  const Plan plan({9, 2, 4, 3, 5});
  const auto in = random_values<float>(9 * 5, 1), d_out = random_values<float>(plan.rows() * 5, 2);
  auto d_in = poisoned<float>(9 * 5);
  combine_rows({}, {.out = d_in.data(), .rows = d_out.data(), .places = plan.places.data(), .M = 9, .k = 2, .C = 5});
  const auto expected = finite_differences(doubles(in), [&](const std::vector<double>& x) {
    double sum = 0;
    for (std::int64_t r = 0; r < plan.rows(); ++r)
      for (std::int64_t i = 0; i < 5; ++i)
        if (plan.sources[size(r)] >= 0) sum += static_cast<double>(d_out[size(r * 5 + i)]) * x[size(plan.sources[size(r)] / 2 * 5 + i)];
    return sum;
  });
  EXPECT_LT(relative_error(d_in, expected), 1e-6);
}

template <class T>
struct Weighed {
  std::vector<float> weights, d_weights;
  std::vector<T> d, a;
  Weighed(const Plan& plan, std::int64_t F, std::int64_t slots, bool shared)
      : weights(random_values<float>(plan.c.M * slots, 1)), d_weights(size(plan.c.M * slots), -7.0f) {
    const std::int64_t rows = shared ? plan.c.M : plan.rows();
    d = random_values<T>(rows * F, 2), a = random_values<T>(rows * F, 3);
    weigh_rows({}, {.d_weights = d_weights.data(),
                    .d = d.data(),
                    .a = a.data(),
                    .weights = weights.data(),
                    .sources = shared ? nullptr : plan.sources.data(),
                    .k = plan.c.k,
                    .slots = slots,
                    .rows = rows,
                    .F = F,
                    .dtype = dtype_of<T>()});
  }
};

// y = w a W: with d = d_y W the gradient of w is a . d.
template <class T>
void check_weigh(bool shared) {
  for (const Case& c : dispatch_cases) {
    const Plan plan(c);
    const std::int64_t F = c.C, slots = c.k + 1, rows = shared ? c.M : plan.rows();
    const Weighed<T> run(plan, F, slots, shared);
    const auto d = doubles(random_values<T>(rows * F, 2)), a = doubles(random_values<T>(rows * F, 3));
    std::vector<double> expected(run.d_weights.size(), -7.0), scaled_d = d, scaled_a = a;
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t choice = shared ? 0 : plan.sources[size(r)];
      if (choice < 0) continue;
      const std::int64_t slot = shared ? r * slots + c.k : choice / c.k * slots + choice % c.k;
      expected[size(slot)] = 0;
      for (std::int64_t i = 0; i < F; ++i) {
        expected[size(slot)] += d[size(r * F + i)] * a[size(r * F + i)];
        scaled_d[size(r * F + i)] *= static_cast<double>(run.weights[size(slot)]);
        scaled_a[size(r * F + i)] *= static_cast<double>(run.weights[size(slot)]);
      }
    }
    EXPECT_LT(relative_error(run.d_weights, expected), 1e-6);
    EXPECT_LT(relative_error(run.d, scaled_d), tolerance<T>());
    EXPECT_LT(relative_error(run.a, scaled_a), tolerance<T>());
  }
}
TEST(Dispatch, WeighsRows) {
  for (const bool shared : {false, true}) check_weigh<float>(shared), check_weigh<bf16>(shared), check_weigh<f16>(shared);
}

TEST(Dispatch, SameBitsForAnyThreadCount) {
  expect_same_bits([] {
    const Plan plan({900, 3, 10, 250, 65});
    const auto rows = gathered(plan, random_values<bf16>(900 * 65, 1));
    auto out = poisoned<bf16>(900 * 65);
    const auto weights = random_values<float>(900 * 3, 3);
    combine_rows({}, {.out = out.data(),
                      .rows = rows.data(),
                      .places = plan.places.data(),
                      .weights = weights.data(),
                      .M = 900,
                      .k = 3,
                      .C = 65,
                      .dtype = DType::bf16});
    const Weighed<float> weighed(plan, 65, 3, false);
    return digest(plan.places, plan.sources, rows, out, weighed.d_weights, weighed.d);
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::dispatch_test
