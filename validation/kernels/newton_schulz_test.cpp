#include "newton_schulz_cases.hpp"

namespace tessera::kernels::testing::newton_schulz_test {
namespace {

std::vector<bf16> orthogonal(const std::vector<bf16>& x, const MatrixCase& c, OrthogonalSteps steps, float scale = 1) {
  std::vector<bf16> out = poisoned<bf16>(std::ssize(x));
  const NewtonSchulz p{.out = out.data(), .x = x.data(), .rows = c.rows, .columns = c.columns, .steps = steps, .scale = scale};
  Workspace workspace(newton_schulz_workspace_bytes(p));
  newton_schulz(workspace.context(true), p);
  EXPECT_TRUE(workspace.intact()) << c;
  return out;
}

Matrix matrix(const std::vector<bf16>& x, const MatrixCase& c) {
  Matrix m(c.rows, c.columns);
  m.at = doubles(x);
  return m;
}

/// |a - b| / |b|.
double apart(const Matrix& a, const Matrix& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.at.size(); ++i) difference += std::pow(a.at[i] - b.at[i], 2), norm += std::pow(b.at[i], 2);
  return std::sqrt(difference / norm);
}

bool far_from_singular(const MatrixCase& c) { return 3 * std::min(c.rows, c.columns) < std::max(c.rows, c.columns); }

/// Beside the loop with the same rounding, which sums of products may fall to the other side of, and beside exact numbers. Small singular
/// values of a square grow five hundred times, and what rounding adds to them grows too.
TEST(NewtonSchulz, IsThePublishedLoop) {
  for (const MatrixCase& c : matrix_cases)
    for (const OrthogonalSteps steps : all_orthogonal_steps) {
      const auto x = random_values<bf16>(c.rows * c.columns, 1, 1e-3f);
      const Matrix result = matrix(orthogonal(x, c, steps), c);
      const double off_rounded = apart(result, orthogonal_of(matrix(x, c), steps, [](double v) {
                                         return static_cast<double>(static_cast<float>(bf16(static_cast<float>(v))));
                                       }));
      EXPECT_LT(off_rounded, far_from_singular(c) ? 0.01 : 0.05) << c << ", steps " << static_cast<int>(steps);
      EXPECT_LT(apart(result, orthogonal_of(matrix(x, c), steps)), far_from_singular(c) ? 0.07 : 0.2)
          << c << ", steps " << static_cast<int>(steps);
    }
}

/// Of matrices that are far from singular each value is near 1: O O^T is near the unit matrix.
TEST(NewtonSchulz, MakesSingularValuesNearOne) {
  for (const MatrixCase& c : {MatrixCase{24, 300}, {300, 24}, {40, 257}})
    for (const auto& [steps, most] :
         {std::pair{OrthogonalSteps::simple, 0.6}, {OrthogonalSteps::quintic, 0.12}, {OrthogonalSteps::polar_express, 0.35}}) {
      Matrix o = matrix(orthogonal(random_values<bf16>(c.rows * c.columns, 2), c, steps), c);
      if (c.rows > c.columns) o = o.transposed();
      const Matrix gram = o * o.transposed();
      for (std::int64_t i = 0; i < gram.rows; ++i)
        for (std::int64_t j = 0; j < gram.columns; ++j) EXPECT_NEAR(gram(i, j), i == j, most) << c << " " << i << " " << j;
    }
}

/// Of a square both take X X^T, which is another product.
TEST(NewtonSchulz, OfATransposedMatrixIsTheTransposed) {
  for (const MatrixCase& c : matrix_cases) {
    const auto x = random_values<bf16>(c.rows * c.columns, 3);
    std::vector<bf16> turned(x.size());
    for (std::int64_t i = 0; i < c.rows; ++i)
      for (std::int64_t j = 0; j < c.columns; ++j)
        turned[static_cast<std::size_t>(j * c.rows + i)] = x[static_cast<std::size_t>(i * c.columns + j)];
    const MatrixCase other{c.columns, c.rows};
    const Matrix result = matrix(orthogonal(x, c, OrthogonalSteps::quintic), c),
                 of_turned = matrix(orthogonal(turned, other, OrthogonalSteps::quintic), other).transposed();
    EXPECT_LE(apart(of_turned, result), c.rows == c.columns ? 0.05 : 0.01) << c;
  }
}

/// A power of two in front of the matrix changes no bit, and one in front of the result that alone. In place the bits are the same.
TEST(NewtonSchulz, TakesAnyScale) {
  const MatrixCase c{24, 300};
  const auto x = random_values<bf16>(c.rows * c.columns, 4);
  auto large = x;
  for (bf16& v : large) v = bf16(0x1p20f * static_cast<float>(v));
  const auto result = orthogonal(x, c, OrthogonalSteps::simple), of_large = orthogonal(large, c, OrthogonalSteps::simple),
             scaled = orthogonal(x, c, OrthogonalSteps::simple, 0.25f);
  EXPECT_EQ(digest(of_large), digest(result));
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(static_cast<float>(scaled[i]), 0.25f * static_cast<float>(result[i])) << i;
  std::vector<bf16> in_place = x;
  const NewtonSchulz p{
      .out = in_place.data(), .x = in_place.data(), .rows = c.rows, .columns = c.columns, .steps = OrthogonalSteps::simple};
  Workspace workspace(newton_schulz_workspace_bytes(p));
  newton_schulz(workspace.context(true), p);
  EXPECT_EQ(digest(in_place), digest(result));
}

/// Parts of rows or columns, with what is no part of the matrix between them.
TEST(NewtonSchulz, TakesParts) {
  for (const MatrixCase& c : {MatrixCase{24, 300}, {300, 24}, {36, 36}})
    for (const std::int64_t parts : {2, 3})
      for (const bool columns : {false, true}) {
        const PartedMatrix parted(random_values<bf16>(c.rows * c.columns, 6), c, parts, columns);
        NewtonSchulz p = parted.call();
        std::vector<bf16> out = poisoned<bf16>(c.rows * c.columns);
        p.x = parted.memory.data(), p.out = out.data();
        Workspace workspace(newton_schulz_workspace_bytes(p));
        newton_schulz(workspace.context(true), p);
        EXPECT_TRUE(workspace.intact());
        EXPECT_EQ(digest(parted.joined(out)), digest(orthogonal(parted.whole, c, OrthogonalSteps::quintic))) << c << parts << columns;
      }
  bf16 number{};
  Workspace none(0);
  EXPECT_ANY_THROW(
      newton_schulz(none.context(), {.out = &number, .x = &number, .rows = 2, .columns = 3, .parts = 2, .parts_of_columns = true}));
}

TEST(NewtonSchulz, LeavesZeros) {
  for (const OrthogonalSteps steps : all_orthogonal_steps)
    for (const bf16 v : orthogonal(std::vector<bf16>(24 * 40), {24, 40}, steps)) ASSERT_EQ(static_cast<float>(v), 0);
}

TEST(NewtonSchulz, SameBitsWithAnyThreadCount) {
  expect_same_bits([] {
    Hash128 all{};
    for (const MatrixCase& c : {MatrixCase{300, 700}, {700, 300}})
      all = hash_text(all.hex() + digest(orthogonal(random_values<bf16>(c.rows * c.columns, 5), c, OrthogonalSteps::quintic)).hex());
    return all;
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::newton_schulz_test
