#include "device_array.hpp"
#include "elementwise_cases.hpp"

namespace tessera::kernels::testing::elementwise_cuda_test {
namespace {

class ElementwiseCuda : public OnDevice {};

template <class T>
void expect_bits_of_host(std::int64_t shift) {
  for (std::int64_t n : elementwise_lengths) {
    SCOPED_TRACE(n);
    const auto x = random_values<T>(n, 1), y = random_values<T>(n, 2);
    std::vector<T> expected = poisoned<T>(n);
    host::add({}, expected.data(), x.data(), y.data(), n, dtype_of<T>());
    DeviceArray<T> dx(x, shift), dy(y, shift), out(n, shift);
    cuda::add({}, out.data(), dx.data(), dy.data(), n, dtype_of<T>());
    EXPECT_EQ(digest(out.host()).hex(), digest(expected).hex());
    cuda::add({}, dx.data(), dx.data(), dy.data(), n, dtype_of<T>());
    EXPECT_EQ(digest(dx.host()).hex(), digest(expected).hex()) << "in place";
  }
}
TEST_F(ElementwiseCuda, AddHasTheBitsOfTheHost) {
  for (std::int64_t shift : {0, 1}) expect_bits_of_host<float>(shift), expect_bits_of_host<bf16>(shift), expect_bits_of_host<f16>(shift);
}

template <class T>
void check_add_scaled(std::int64_t shift) {
  for (std::int64_t n : elementwise_lengths)
    for (const bool has_x : {true, false}) {
      const auto x = random_values<T>(n, 1), y = random_values<T>(n, 2);
      std::vector<T> expected = poisoned<T>(n);
      AddScaled p{.out = expected.data(), .x = has_x ? x.data() : nullptr, .y = y.data(), .scale = 0.22f, .n = n, .dtype = dtype_of<T>()};
      host::add_scaled({}, p);
      DeviceArray<T> dx(x, shift), dy(y, shift), out(n, shift);
      p.out = out.data(), p.x = has_x ? dx.data() : nullptr, p.y = dy.data();
      cuda::add_scaled({}, p);
      EXPECT_EQ(digest(out.host()).hex(), digest(expected).hex()) << n;
      p.out = dy.data();
      cuda::add_scaled({}, p);
      EXPECT_EQ(digest(dy.host()).hex(), digest(expected).hex()) << n << " in place";
    }
}
TEST_F(ElementwiseCuda, AddScaledHasTheBitsOfTheHost) {
  for (std::int64_t shift : {0, 1}) check_add_scaled<float>(shift), check_add_scaled<bf16>(shift), check_add_scaled<f16>(shift);
}

TEST_F(ElementwiseCuda, SumsOfIntegersWrapAsOnTheHost) {
  for (std::int64_t n : elementwise_lengths) {
    std::vector<std::int64_t> x(static_cast<std::size_t>(n)), y = x, expected = x;
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = std::numeric_limits<std::int64_t>::max() - static_cast<std::int64_t>(i), y[i] = static_cast<std::int64_t>(i * i) - 7;
      expected[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(x[i]) + static_cast<std::uint64_t>(y[i]));
    }
    std::vector<std::int64_t> host = x;
    host::add({}, host.data(), host.data(), y.data(), n, DType::i64);
    EXPECT_EQ(host, expected) << n;
    for (std::int64_t shift : {0, 1}) {
      DeviceArray<std::int64_t> dx(x, shift), dy(y, shift);
      cuda::add({}, dx.data(), dx.data(), dy.data(), n, DType::i64);
      EXPECT_EQ(dx.host(), expected) << n;
    }
  }
}

template <class Out, class In>
void check_cast(std::int64_t shift) {
  for (std::int64_t n : elementwise_lengths) {
    const auto x = values_to_cast<In>(n);
    std::vector<Out> expected = poisoned<Out>(n);
    host::cast({}, expected.data(), dtype_of<Out>(), x.data(), dtype_of<In>(), n);
    DeviceArray<In> dx(x, shift);
    DeviceArray<Out> out(n, shift);
    cuda::cast({}, out.data(), dtype_of<Out>(), dx.data(), dtype_of<In>(), n);
    EXPECT_EQ(digest(out.host()).hex(), digest(expected).hex()) << n;
  }
}
TEST_F(ElementwiseCuda, CastHasTheBitsOfTheHost) {
  for (std::int64_t shift : {0, 3}) {
    check_cast<bf16, float>(shift), check_cast<float, bf16>(shift), check_cast<float, float>(shift), check_cast<bf16, bf16>(shift);
    check_cast<f16, float>(shift), check_cast<float, f16>(shift), check_cast<f16, f16>(shift), check_cast<bf16, f16>(shift);
  }
}

TEST_F(ElementwiseCuda, CopyRowsLeavesWhatLiesBetween) {
  for (const CopyRowsCase& c : copy_rows_cases) {
    CopiedRows rows(c);
    DeviceArray<bf16> source(rows.from), target(rows.to);
    cuda::copy_rows({}, copy_of(c, target.data(), source.data()));
    EXPECT_EQ(digest(target.host()).hex(), digest(rows.expected).hex()) << c;
  }
}

TEST_F(ElementwiseCuda, FillZeroFills) {
  DeviceArray<std::uint32_t> x(77);
  cuda::fill_zero({}, x.data(), 77 * 4);
  EXPECT_EQ(x.host(), std::vector<std::uint32_t>(77, 0));
}

template <class T>
void check_sum_in_order(std::int64_t shift) {
  for (const SumInOrderCase& c : sum_in_order_cases) {
    const SumInOrderInputs<T> in(c);
    std::vector<T> host = in.before;
    host::sum_in_order({}, in.arguments(c, host.data(), in.parts.data()));
    DeviceArray<T> parts(in.parts, shift), out(in.before, shift);
    cuda::sum_in_order({}, in.arguments(c, out.data(), parts.data()));
    EXPECT_EQ(digest(out.host()).hex(), digest(host).hex()) << c;
  }
}
TEST_F(ElementwiseCuda, SumInOrderHasTheBitsOfTheHost) {
  for (std::int64_t shift : {0, 1}) check_sum_in_order<float>(shift), check_sum_in_order<bf16>(shift), check_sum_in_order<f16>(shift);
}

template <class T>
Hash128 column_sums_of(const ColumnSumsCase& c, bool compare) {
  const ColumnSumsInputs<T> in(c);
  auto expected = in.sum;
  DeviceArray<float> sum(in.sum);
  DeviceArray<T> dx(in.x);
  ColumnSums p{.sum = expected.data(), .x = in.x.data(), .M = c.M, .N = c.N, .dtype = dtype_of<T>()};
  if (compare) {
    Workspace workspace(host::column_sums_workspace_bytes(p));
    host::column_sums(workspace.context(), p);
  }
  p.sum = sum.data(), p.x = dx.data();
  DeviceBytes workspace(cuda::column_sums_workspace_bytes(p));
  cuda::column_sums(workspace.context(), p);
  if (compare) {
    EXPECT_LT(norm_error(sum.host(), expected), 1e-5) << c;
  }
  return digest(sum.host());
}
TEST_F(ElementwiseCuda, ColumnSumsMatchTheHost) {
  for (const ColumnSumsCase& c : column_sums_cases)
    column_sums_of<float>(c, true), column_sums_of<bf16>(c, true), column_sums_of<f16>(c, true);
  expect_same_bits_on_device([] { return column_sums_of<float>({300, 300}, false); });
  expect_same_bits_on_device([] { return column_sums_of<bf16>({300, 304}, false); });
}

// Initial weights do not depend on the backend.
TEST_F(ElementwiseCuda, NormalHasTheBitsOfTheHost) {
  for (std::int64_t n : elementwise_lengths) {
    for (std::uint64_t first : {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{0xfffffffe} * 4 + 1}) {
      std::vector<float> expected = poisoned<float>(n);
      host::normal({}, expected.data(), n, 0.02f, 0x123456789abcdef0u, 77, first);
      DeviceArray<float> x(n);
      cuda::normal({}, x.data(), n, 0.02f, 0x123456789abcdef0u, 77, first);
      EXPECT_EQ(digest(x.host()).hex(), digest(expected).hex()) << n << " from " << first;
    }
  }
}

TEST_F(ElementwiseCuda, AHundredThousandNormalsHaveTheBitsOfTheHost) {
  constexpr std::int64_t n = 100000;
  std::vector<float> expected = poisoned<float>(n);
  host::normal({}, expected.data(), n, 1, 42, 7, 0);
  DeviceArray<float> x(n);
  cuda::normal({}, x.data(), n, 1, 42, 7, 0);
  EXPECT_EQ(digest(x.host()).hex(), digest(expected).hex());
}

}  // namespace
}  // namespace tessera::kernels::testing::elementwise_cuda_test
