#include <cstring>
#include <memory>

#include "adafactor_cases.hpp"

namespace tessera::kernels::testing::adafactor_test {
namespace {

/// All calls, in pieces of elements. The copy goes to the matrix' own, or elsewhere.
void update(AdafactorMatrix& m, const void* grad, DType dtype, const UpdateScalars& s, std::int64_t piece, bool copy = true,
            bf16* elsewhere = nullptr) {
  std::vector<std::int64_t> words(static_cast<std::size_t>(m.words()));
  FixedSum sums[1];
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  const auto over_pieces = [&](const auto& call) {
    for (std::int64_t i = 0; i < m.rows * m.columns; i += piece) {
      Update p = m.call(i, std::min(piece, m.rows * m.columns - i), words.data(), sums);
      p.grad = static_cast<const std::byte*>(grad) + i * size, p.grad_dtype = dtype, p.scalars = &s;
      if (!copy) p.param = nullptr;
      if (elsewhere) p.param = elsewhere + i;
      call(p);
    }
  };
  over_pieces([](const Update& p) { adafactor_squares({}, p); });
  Update whole = m.call(0, 0, words.data(), sums);
  whole.scalars = &s;
  adafactor_lines({}, whole);
  over_pieces([](const Update& p) { adafactor_direction({}, p); });
  over_pieces([](const Update& p) { adafactor({}, p); });
}

/// A copy that leaves the caches before anyone reads it is written around them, where rows begin on whole lines.
TEST(Adafactor, LargeCopiesAreThoseOfPieces) {
  constexpr std::int64_t rows = 2051, columns = 4128;
  AdafactorMatrix at_once(rows, columns), pieces(rows, columns);
  const std::vector<float> grad = random_values<float>(rows * columns, 9);
  const UpdateScalars s = adafactor_scalars(grad, 1, 0.25f);
  std::vector<bf16> room = poisoned<bf16>(rows * columns + 32);
  void* first = room.data();
  std::size_t bytes = room.size() * sizeof(bf16);
  auto* copy = static_cast<bf16*>(std::align(64, rows * columns * sizeof(bf16), first, bytes));
  update(at_once, grad.data(), DType::f32, s, rows * columns, true, copy);
  update(pieces, grad.data(), DType::f32, s, 1'000'003);
  EXPECT_EQ(digest(at_once.master), digest(pieces.master));
  EXPECT_EQ(std::memcmp(copy, pieces.param.data(), pieces.param.size() * sizeof(bf16)), 0);
}

TEST(Adafactor, IsItsDefinition) {
  for (const auto& [rows, columns] : matrices) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
    AdafactorMatrix m(rows, columns);
    std::vector<double> w = doubles(m.master), of_rows(m.of_rows.size()), of_columns(m.of_columns.size());
    std::ranges::fill(m.of_rows, 0.0f), std::ranges::fill(m.of_columns, 0.0f);
    for (int t = 1; t <= 5; ++t) {
      const std::vector<float> grad = matrix_gradients(rows, columns, 100 + static_cast<unsigned>(t));
      const UpdateScalars s = adafactor_scalars(grad, t, 0.25f);
      update(m, grad.data(), DType::f32, s, rows * columns);
      const double b2 = 1 - std::pow(t, -0.8);
      std::vector<double> mean_rows(of_rows.size()), mean_columns(of_columns.size());
      const auto at = [&](std::int64_t r, std::int64_t c) { return static_cast<std::size_t>(r * columns + c); };
      const auto g = [&](std::int64_t r, std::int64_t c) { return static_cast<double>(grad[at(r, c)] * 0.25f); };
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c) {
          const double square = g(r, c) * g(r, c) + 1e-30;
          mean_rows[static_cast<std::size_t>(r)] += square / static_cast<double>(columns);
          mean_columns[static_cast<std::size_t>(c)] += square / static_cast<double>(rows);
        }
      double mean = 0, squares = 0;
      for (std::size_t r = 0; r < of_rows.size(); ++r)
        mean += (of_rows[r] = b2 * of_rows[r] + (1 - b2) * mean_rows[r]) / static_cast<double>(rows);
      for (std::size_t c = 0; c < of_columns.size(); ++c) of_columns[c] = b2 * of_columns[c] + (1 - b2) * mean_columns[c];
      std::vector<double> u(w.size());
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c) {
          u[at(r, c)] = g(r, c) / std::sqrt(of_rows[static_cast<std::size_t>(r)] / mean * of_columns[static_cast<std::size_t>(c)]);
          squares += u[at(r, c)] * u[at(r, c)];
        }
      const double clip = std::max(1.0, std::sqrt(squares / static_cast<double>(w.size())));
      for (std::size_t i = 0; i < w.size(); ++i) w[i] = w[i] * (1 - 3e-3 * 0.1) - 3e-3 * u[i] / clip;
      for (std::size_t r = 0; r < of_rows.size(); ++r)
        ASSERT_NEAR(static_cast<double>(m.of_rows[r]), of_rows[r], 1e-6 * of_rows[r]) << "row " << r << " in step " << t;
      for (std::size_t c = 0; c < of_columns.size(); ++c)
        ASSERT_NEAR(static_cast<double>(m.of_columns[c]), of_columns[c], 1e-6 * of_columns[c]) << "column " << c << " in step " << t;
    }
    for (std::size_t i = 0; i < w.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(m.master[i]), w[i], 2e-6 + 1e-6 * std::abs(w[i])) << i;
      ASSERT_EQ(m.param[i], bf16(m.master[i])) << i;
    }
  }
}

TEST(Adafactor, HasItsBitsInAnyPiecesOnAnyThreads) {
  constexpr std::int64_t rows = 70, columns = 300;
  const std::vector<float> grad = matrix_gradients(rows, columns, 9);
  const UpdateScalars s = adafactor_scalars(grad, 3, 0.7f);
  AdafactorMatrix whole(rows, columns);
  update(whole, grad.data(), DType::f32, s, rows * columns);
  for (const std::int64_t piece : {256, 1000, 17, 299, 4096}) {
    AdafactorMatrix cut(rows, columns);
    update(cut, grad.data(), DType::f32, s, piece);
    EXPECT_EQ(cut.hash(), whole.hash()) << piece;
  }
  expect_same_bits([] {
    AdafactorMatrix m(700, 300);
    const std::vector<float> g = matrix_gradients(700, 300, 9);
    update(m, g.data(), DType::f32, adafactor_scalars(g, 3, 1), 700 * 300);
    return m.hash();
  });
}

/// A rank of mesh.tp has a box of the matrix: the sums of two boxes are those of the matrix.
TEST(Adafactor, SumsBoxesAsTheWhole) {
  constexpr std::int64_t rows = 33, columns = 77;
  const std::vector<float> grad = matrix_gradients(rows, columns, 9);
  const UpdateScalars s = adafactor_scalars(grad, 3, 0.7f);
  AdafactorMatrix m(rows, columns);
  std::vector<std::int64_t> whole(static_cast<std::size_t>(m.words())), cut = whole;
  Update p = m.call(0, rows * columns, whole.data(), nullptr);
  p.grad = grad.data(), p.scalars = &s;
  adafactor_squares({}, p);
  for (const auto& [first, width] : {std::pair<std::int64_t, std::int64_t>{0, 30}, {30, 47}}) {
    std::vector<float> box;
    for (std::int64_t r = 0; r < rows; ++r)
      box.insert(box.end(), grad.begin() + r * columns + first, grad.begin() + r * columns + first + width);
    p.grad = box.data(), p.n = rows * width, p.lines.sums = cut.data(), p.lines.column = first, p.lines.width = width;
    adafactor_squares({}, p);
  }
  EXPECT_EQ(cut, whole);
}

TEST(Adafactor, LeavesAllWhereTheStepIsSkipped) {
  AdafactorMatrix m(33, 77);
  AdafactorMatrix before = m;
  UpdateScalars s = scalars_of_step(3, 1e-2f, 1);
  s.skip = 1;
  const std::vector<float> grad = poisoned<float>(33 * 77);
  update(m, grad.data(), DType::f32, s, 500, false);
  EXPECT_EQ(m.hash(), before.hash());
  update(m, grad.data(), DType::f32, s, 500);
  before.param = std::vector<bf16>(before.master.begin(), before.master.end());
  EXPECT_EQ(m.hash(), before.hash());
}

TEST(Adafactor, TakesGradientsInBf16AndFixedPoint) {
  std::vector<float> values = matrix_gradients(33, 77, 9);
  const std::vector<bf16> halves(values.begin(), values.end());
  const std::vector<float> same(halves.begin(), halves.end());
  const std::vector<std::int64_t> fixed = in_fixed_point(values);
  const auto hash_of = [](const void* grad, DType dtype) {
    AdafactorMatrix m(33, 77);
    update(m, grad, dtype, adafactor_scalars({1.0f}, 3, 0.5f), 33 * 77);
    return m.hash();
  };
  EXPECT_EQ(hash_of(same.data(), DType::f32), hash_of(halves.data(), DType::bf16));
  EXPECT_EQ(hash_of(values.data(), DType::f32), hash_of(fixed.data(), DType::i64));
}

void whole_vector(const Context&, const Update& of) {
  FixedSum sums[1];
  Update p = of;
  p.sums = sums, p.tensor_elements = p.n;
  Update first = p;
  first.param = nullptr;
  adafactor_vector_direction({}, first);
  adafactor_vector({}, p);
}
const UpdateTested vector_kernel{whole_vector, 1, {}};

TEST(Adafactor, OfVectorsIsItsDefinition) {
  vector_kernel.expect_copies_in_fp16();
  vector_kernel.expect_any_gradient();
  vector_kernel.expect_bits_of_any_thread_count();
  for (const UpdateCase& c : update_cases) {
    if (c.skip) continue;
    UpdateState now(c.n);
    std::ranges::fill(now.state[0], 0.0f);
    std::vector<double> w = doubles(now.master), v(w.size()), u(w.size());
    for (int t = 1; t <= 10; ++t) {
      const auto grad = random_values<float>(c.n, 100 + static_cast<unsigned>(t));
      UpdateScalars s = scalars_of_step(t, 3e-3f, 0.25f);
      s.beta2 = static_cast<float>(1 - std::pow(t, -0.8));
      vector_kernel.step(now, grad.data(), DType::f32, s, 0.1f, 0, -1, 1, c.copy);
      const double b2 = 1 - std::pow(t, -0.8);
      double squares = 0;
      for (std::size_t i = 0; i < w.size(); ++i) {
        const auto g = static_cast<double>(grad[i] * 0.25f);
        v[i] = b2 * v[i] + (1 - b2) * (g * g + 1e-30), u[i] = g / std::sqrt(v[i]), squares += u[i] * u[i];
      }
      const double clip = std::max(1.0, std::sqrt(squares / static_cast<double>(w.size())));
      for (std::size_t i = 0; i < w.size(); ++i) w[i] = w[i] * (1 - 3e-3 * 0.1) - 3e-3 * u[i] / clip;
    }
    for (std::size_t i = 0; i < w.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(now.master[i]), w[i], 2e-6 + 1e-6 * std::abs(w[i])) << c << ": " << i;
      ASSERT_NEAR(static_cast<double>(now.state[0][i]), v[i], 1e-6 * v[i]) << c << ": " << i;
    }
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::adafactor_test
