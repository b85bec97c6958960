#include "device_array.hpp"
#include "grouped_gemm_cases.hpp"
#include "kernels/cuda/devices.hpp"

namespace tessera::kernels::testing::grouped_gemm_cuda_test {
namespace {

class GroupedGemmCuda : public OnDevice {};

using Case = GroupedGemmCase;

template <class T>
struct Results {
  std::vector<T> y, d_x;
  std::vector<float> d_w;

  /// `accumulate`: the gradient of w is added to ones.
  Results(const Case& c, bool on_host, bool accumulate, std::int64_t shift = 0) {
    const GroupedGemmInputs<T> in(c);
    const auto& offsets = in.offsets;
    const auto &x = in.x, &w = in.w, &dy = in.d_y;
    const std::vector<float> ones(static_cast<std::size_t>(c.E() * c.N * c.K), 1.0f);
    GroupedGemm forward{.rows = c.rows(), .E = c.E(), .N = c.N, .K = c.K, .b_transposed = true, .dtype = dtype_of<T>()};
    GroupedGemm input{.rows = c.rows(), .E = c.E(), .N = c.K, .K = c.N, .dtype = dtype_of<T>()};
    GroupedWeightGradient weight{.rows = c.rows(), .E = c.E(), .N = c.N, .K = c.K, .accumulate = accumulate, .dtype = dtype_of<T>()};
    const auto point = [&](T* y, T* d_x, float* d_w, const std::int32_t* offsets, const T* x, const T* w, const T* d_y) {
      forward.c = y, forward.a = x, forward.b = w, forward.offsets = offsets;
      input.c = d_x, input.a = d_y, input.b = w, input.offsets = offsets;
      weight.d_w = d_w, weight.d_y = d_y, weight.x = x, weight.offsets = offsets;
    };
    if (on_host) {
      y = poisoned<T>(c.rows() * c.N), d_x = poisoned<T>(c.rows() * c.K), d_w = accumulate ? ones : poisoned<float>(c.E() * c.N * c.K);
      point(y.data(), d_x.data(), d_w.data(), offsets.data(), x.data(), w.data(), dy.data());
      Workspace workspace(std::max({host::grouped_gemm_workspace_bytes(forward), host::grouped_gemm_workspace_bytes(input),
                                    host::grouped_weight_gradient_workspace_bytes(weight)}));
      host::grouped_gemm(workspace.context(), forward);
      host::grouped_gemm(workspace.context(), input);
      host::grouped_weight_gradient(workspace.context(), weight);
      return;
    }
    DeviceArray<T> device_y(c.rows() * c.N, shift), device_d_x(c.rows() * c.K, shift), device_x(x, shift), device_w(w, shift),
        device_d_y(dy, shift);
    DeviceArray<float> device_d_w(c.E() * c.N * c.K, shift);
    if (accumulate) device_d_w = ones;
    DeviceArray<std::int32_t> device_offsets(offsets);
    point(device_y.data(), device_d_x.data(), device_d_w.data(), device_offsets.data(), device_x.data(), device_w.data(),
          device_d_y.data());
    cuda::grouped_gemm({}, forward);
    cuda::grouped_gemm({}, input);
    cuda::grouped_weight_gradient({}, weight);
    y = device_y.host(), d_x = device_d_x.host(), d_w = device_d_w.host();
  }
};

template <class T>
void check_against_the_host(const std::vector<Case>& cases, const std::vector<std::int64_t>& shifts = {0, 1}) {
  for (const Case& c : DeviceSample().some(cases, 3))
    for (const std::int64_t shift : shifts)
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(::testing::Message() << c << ", shift " << shift);
        const Results<T> ours(c, false, accumulate, shift), host(c, true, accumulate);
        EXPECT_LT(norm_error(ours.y, host.y), device_tolerance<T>());
        EXPECT_LT(norm_error(ours.d_x, host.d_x), device_tolerance<T>());
        EXPECT_LT(norm_error(ours.d_w, host.d_w), 1e-5);
      }
}
TEST_F(GroupedGemmCuda, MatchesTheHostFp32) { check_against_the_host<float>(grouped_gemm_cases()); }
TEST_F(GroupedGemmCuda, MatchesTheHostBf16) { check_against_the_host<bf16>(grouped_gemm_cases()); }
TEST_F(GroupedGemmCuda, MatchesTheHostFp16) { check_against_the_host<f16>(grouped_gemm_cases()); }

/// Products of columns of wider matrices, scaled and added: of a GPU or of the host.
template <class T>
struct Columns {
  std::vector<T> y, d_x;
  std::vector<float> d_w;

  Columns(const Case& c, bool on_host, bool accumulate, std::int64_t first) {
    const std::vector<std::int32_t> offsets = c.offsets();
    const std::int64_t width = c.N + 16;
    const auto x = random_values<T>(c.rows() * c.K, 1), w = random_values<T>(c.E() * c.N * c.K, 2),
               wide = random_values<T>(c.rows() * width, 3);
    GroupedGemm up{.rows = c.rows(), .E = c.E(), .N = c.N, .K = c.K, .c_stride = width, .scale = 0.5f, .b_transposed = true};
    GroupedGemm down{.rows = c.rows(), .E = c.E(), .N = c.K, .K = c.N, .a_stride = width, .scale = 2.0f};
    GroupedWeightGradient weight{.rows = c.rows(), .E = c.E(), .N = c.N, .K = c.K, .d_y_stride = width, .dtype = dtype_of<T>()};
    up.accumulate = accumulate, up.dtype = down.dtype = dtype_of<T>();
    const auto point = [&](T* to, T* to_x, float* to_w, const std::int32_t* at, const T* from_x, const T* from_w, const T* from) {
      up.c = to + first, up.a = from_x, up.b = from_w, up.offsets = at;
      down.c = to_x, down.a = from + first, down.b = from_w, down.offsets = at;
      weight.d_w = to_w, weight.d_y = from + first, weight.x = from_x, weight.offsets = at;
    };
    if (on_host) {
      y = wide, d_x = poisoned<T>(c.rows() * c.K), d_w = poisoned<float>(c.E() * c.N * c.K);
      point(y.data(), d_x.data(), d_w.data(), offsets.data(), x.data(), w.data(), wide.data());
      Workspace workspace(std::max({host::grouped_gemm_workspace_bytes(up), host::grouped_gemm_workspace_bytes(down),
                                    host::grouped_weight_gradient_workspace_bytes(weight)}));
      host::grouped_gemm(workspace.context(), up);
      host::grouped_gemm(workspace.context(), down);
      host::grouped_weight_gradient(workspace.context(), weight);
      return;
    }
    DeviceArray<T> to(wide), from(wide), to_x(c.rows() * c.K), device_x(x), device_w(w);
    DeviceArray<float> to_w(c.E() * c.N * c.K);
    DeviceArray<std::int32_t> at(offsets);
    point(to.data(), to_x.data(), to_w.data(), at.data(), device_x.data(), device_w.data(), from.data());
    cuda::grouped_gemm({}, up);
    cuda::grouped_gemm({}, down);
    cuda::grouped_weight_gradient({}, weight);
    y = to.host(), d_x = to_x.host(), d_w = to_w.host();
  }
};

template <class T>
void check_columns(const std::vector<Case>& cases, const std::vector<std::int64_t>& firsts = {3, 8}) {
  for (const Case& c : DeviceSample().some(cases, 3))
    for (const std::int64_t first : firsts)
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(::testing::Message() << c << ", from column " << first);
        const Columns<T> ours(c, false, accumulate, first), host(c, true, accumulate, first);
        EXPECT_LT(norm_error(ours.y, host.y), device_tolerance<T>());
        EXPECT_LT(norm_error(ours.d_x, host.d_x), device_tolerance<T>());
        EXPECT_LT(norm_error(ours.d_w, host.d_w), 1e-5);
      }
}
TEST_F(GroupedGemmCuda, ColumnsMatchTheHostFp32) { check_columns<float>(grouped_gemm_cases()); }
TEST_F(GroupedGemmCuda, ColumnsMatchTheHostBf16) { check_columns<bf16>(grouped_gemm_cases()); }
TEST_F(GroupedGemmCuda, ColumnsMatchTheHostFp16) { check_columns<f16>(grouped_gemm_cases()); }

TEST_F(GroupedGemmCuda, SameBitsInEveryOrder) {
  expect_same_bits_on_device([] {
    const Results<bf16> half(grouped_gemm_cases()[1], false, false);
    const Results<float> whole(grouped_gemm_cases()[3], false, true);
    return digest(half.y, half.d_x, half.d_w, whole.y, whole.d_x, whole.d_w);
  });
}

class GroupedGemmOnHopper : public OnHopper {};

/// The tiles of either width.
std::vector<Case> large_cases() {
  std::vector<Case> all = large_grouped_gemm_cases();
  if (watches_races()) return {{{1, 130}, 3, 136, 248}};
  return all;
}

TEST_F(GroupedGemmOnHopper, SmallProductsMatchTheHost) {
  if (!watches_races()) check_against_the_host<bf16>(grouped_gemm_cases());
}
TEST_F(GroupedGemmOnHopper, ProductsInFp16MatchTheHost) {
  if (!watches_races()) check_against_the_host<f16>(grouped_gemm_cases()), check_against_the_host<f16>({large_cases()[0]}, {0});
}
TEST_F(GroupedGemmOnHopper, LargeProductsMatchTheHost) { check_against_the_host<bf16>(large_cases(), {0}); }
TEST_F(GroupedGemmOnHopper, ColumnsMatchTheHost) { check_columns<bf16>(large_cases(), {8}); }

TEST_F(GroupedGemmOnHopper, SameBitsInEveryOrder) {
  if (watches_races()) return;
  expect_same_bits_on_device([] {
    const Results<bf16> all(large_cases()[0], false, true);
    return digest(all.y, all.d_x, all.d_w);
  });
}

/// Row 7 of the second of three experts, and row 3 of the only one: other tiles, other places in them, other neighbours.
TEST_F(GroupedGemmOnHopper, ARowsBitsDoNotDependOnTheRowsBesideIt) {
  if (watches_races()) return;
  constexpr std::int64_t N = 136, K = 200, E = 3;
  const auto x = random_values<bf16>(300 * K, 1), w = random_values<bf16>(E * N * K, 2);
  const auto product = [&](const std::vector<std::int32_t>& offsets, const std::vector<bf16>& rows, const std::vector<bf16>& of) {
    const std::int64_t count = static_cast<std::int64_t>(rows.size()) / K;
    DeviceArray<bf16> a(rows), b(of), c(count * N);
    DeviceArray<std::int32_t> at(offsets);
    cuda::grouped_gemm({}, {.c = c.data(),
                            .a = a.data(),
                            .b = b.data(),
                            .offsets = at.data(),
                            .rows = count,
                            .E = static_cast<std::int64_t>(offsets.size()) - 1,
                            .N = N,
                            .K = K,
                            .b_transposed = true,
                            .dtype = DType::bf16});
    return c.host();
  };
  const std::vector<bf16> many = product({0, 131, 290, 300}, x, w);
  const std::vector<bf16> alone =
      product({0, 20}, {x.begin() + (131 + 4) * K, x.begin() + (131 + 24) * K}, {w.begin() + N * K, w.begin() + 2 * N * K});
  EXPECT_TRUE(std::equal(alone.begin() + 3 * N, alone.begin() + 4 * N, many.begin() + (131 + 7) * N));
}

}  // namespace
}  // namespace tessera::kernels::testing::grouped_gemm_cuda_test
