#include <numeric>

#include "device_array.hpp"
#include "kernels/grouped_gemm/grouped_gemm.hpp"

namespace tessera::kernels::testing::grouped_gemm_cuda_test {
namespace {

class GroupedGemmCuda : public OnDevice {};

struct Case {
  std::vector<std::int32_t> counts;  ///< rows of each expert
  std::int64_t unused, N, K;
  std::int64_t E() const { return static_cast<std::int64_t>(counts.size()); }
  std::int64_t rows() const { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) + unused; }
};
/// Rows that are whole vectors and rows that are none, tiles that are not full, experts without rows, more experts than a warp has lanes.
std::vector<Case> cases() {
  std::vector<std::int32_t> many(40, 0);
  for (std::size_t e = 0; e < many.size(); e += 3) many[e] = static_cast<std::int32_t>(e % 7);
  return {{{1}, 0, 1, 1}, {{3, 0, 70, 17}, 0, 40, 72}, {{0, 5, 0}, 66, 65, 33}, {{130, 20}, 0, 136, 24}, {many, 1, 16, 48}};
}

template <class T>
struct Results {
  std::vector<T> y, d_x;
  std::vector<float> d_w;

  /// `accumulate`: the gradient of w is added to ones.
  Results(const Case& c, bool on_host, bool accumulate, std::int64_t shift = 0) {
    std::vector<std::int32_t> offsets{0};
    for (const std::int32_t n : c.counts) offsets.push_back(offsets.back() + n);
    const auto x = random_values<T>(c.rows() * c.K, 1), w = random_values<T>(c.E() * c.N * c.K, 2),
               dy = random_values<T>(c.rows() * c.N, 3);
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
void check_against_the_host() {
  for (const Case& c : cases())
    for (const std::int64_t shift : {0, 1})
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(::testing::Message() << c.E() << " experts, N " << c.N << ", K " << c.K << ", shift " << shift);
        const Results<T> ours(c, false, accumulate, shift), host(c, true, accumulate);
        EXPECT_LT(norm_error(ours.y, host.y), device_tolerance<T>());
        EXPECT_LT(norm_error(ours.d_x, host.d_x), device_tolerance<T>());
        EXPECT_LT(norm_error(ours.d_w, host.d_w), 1e-5);
      }
}
TEST_F(GroupedGemmCuda, MatchesTheHostFp32) { check_against_the_host<float>(); }
TEST_F(GroupedGemmCuda, MatchesTheHostBf16) { check_against_the_host<bf16>(); }

/// Products of columns of wider matrices, scaled and added: of a GPU or of the host.
template <class T>
struct Columns {
  std::vector<T> y, d_x;
  std::vector<float> d_w;

  Columns(const Case& c, bool on_host, bool accumulate, std::int64_t first) {
    std::vector<std::int32_t> offsets{0};
    for (const std::int32_t n : c.counts) offsets.push_back(offsets.back() + n);
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
void check_columns() {
  for (const Case& c : cases())
    for (const std::int64_t first : {3, 8})
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(::testing::Message() << c.E() << " experts, N " << c.N << ", K " << c.K << ", from column " << first);
        const Columns<T> ours(c, false, accumulate, first), host(c, true, accumulate, first);
        EXPECT_LT(norm_error(ours.y, host.y), device_tolerance<T>());
        EXPECT_LT(norm_error(ours.d_x, host.d_x), device_tolerance<T>());
        EXPECT_LT(norm_error(ours.d_w, host.d_w), 1e-5);
      }
}
TEST_F(GroupedGemmCuda, ColumnsMatchTheHostFp32) { check_columns<float>(); }
TEST_F(GroupedGemmCuda, ColumnsMatchTheHostBf16) { check_columns<bf16>(); }

TEST_F(GroupedGemmCuda, SameBitsInEveryOrder) {
  expect_same_bits_on_device([] {
    const Results<bf16> half(cases()[1], false, false);
    const Results<float> whole(cases()[2], false, true);
    return digest(half.y, half.d_x, half.d_w, whole.y, whole.d_x, whole.d_w);
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::grouped_gemm_cuda_test
