#include "base/backend.hpp"
#include "gemm_cases.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/check.hpp"
#include "device_array.hpp"
#include "kernels/cuda/kernel_search.hpp"
#include "kernels/gemm/room.hpp"

namespace tessera::kernels::testing::gemm_cuda_test {
namespace {

class GemmCuda : public OnDevice {};

using Shape = GemmSize;

template <class T>
struct Trial {
  Shape s;
  bool a_transposed, b_transposed;
  std::vector<T> a, b, bias;
  Trial(Shape s, bool a_transposed, bool b_transposed)
      : s(s),
        a_transposed(a_transposed),
        b_transposed(b_transposed),
        a(random_values<T>(s.M * s.K, 1)),
        b(random_values<T>(s.K * s.N, 2)),
        bias(random_values<T>(s.N, 3)) {}

  Gemm product(void* c, const T* at_a, const T* at_b, const T* at_bias, bool accumulate, DType out) const {
    return {.c = c,
            .a = at_a,
            .b = at_b,
            .M = s.M,
            .N = s.N,
            .K = s.K,
            .a_transposed = a_transposed,
            .b_transposed = b_transposed,
            .accumulate = accumulate,
            .in = dtype_of<T>(),
            .out = out,
            .bias = at_bias};
  }
  template <class Out>
  std::vector<Out> on_host(bool accumulate, bool with_bias) const {
    std::vector<Out> c = start<Out>(accumulate);
    const Gemm g = product(c.data(), a.data(), b.data(), with_bias ? bias.data() : nullptr, accumulate, dtype_of<Out>());
    Workspace workspace(host::gemm_workspace_bytes(g));
    host::gemm(workspace.context(), g);
    return c;
  }
  /// Operands lie `shift` elements off a 256-byte boundary, but for the bias.
  template <class Out>
  std::vector<Out> on_device(bool accumulate, bool with_bias, std::int64_t shift = 0) const {
    DeviceArray<T> there_a(a, shift), there_b(b, shift), there_bias(bias, 0);
    DeviceArray<Out> c(start<Out>(accumulate), shift);
    const Gemm g = product(c.data(), there_a.data(), there_b.data(), with_bias ? there_bias.data() : nullptr, accumulate, dtype_of<Out>());
    static auto& workspace = *new DeviceBytes(cuda::gemm_workspace_bytes(g));  // the same for every shape
    Context context = workspace.context();
    context.reproducible = false;
    cuda::gemm(context, g);
    return c.host();
  }
  /// x + a b, on the host and, where there is a workspace of it, on the device.
  std::vector<T> joined(DeviceBytes* device, std::int64_t shift = 0) const {
    const std::vector<T> x = random_values<T>(s.M * s.N, 5);
    std::vector<T> c = poisoned<T>(s.M * s.N);
    DeviceArray<T> there_a(a, shift), there_b(b, shift), there_x(x, shift), there_c(c, shift);
    Gemm g = device ? product(there_c.data(), there_a.data(), there_b.data(), nullptr, false, dtype_of<T>())
                    : product(c.data(), a.data(), b.data(), nullptr, false, dtype_of<T>());
    g.addend = device ? there_x.data() : x.data();
    g.addend_scale = shift == 0 ? -1.5f : 1;
    Workspace here(device ? 0 : host::gemm_workspace_bytes(g));
    device ? cuda::gemm(device->context(), g) : host::gemm(here.context(), g);
    EXPECT_EQ(there_x.host(), x) << "an addend is only read";
    return device ? there_c.host() : c;
  }
  template <class Out>
  std::vector<Out> start(bool accumulate) const {
    return accumulate ? random_values<Out>(s.M * s.N, 4) : poisoned<Out>(s.M * s.N);
  }
};

template <class T>
void expect_all_layouts() {
  for (Shape s : gemm_sizes) {
    for (int layout = 0; layout < 3; ++layout) {  // nothing transposed, a, b: what linear layers use
      const Trial<T> t(s, layout == 1, layout == 2);
      const auto where = fmt::format("{} x {} x {}, layout {}", s.M, s.N, s.K, layout);
      EXPECT_LT(norm_error(t.template on_device<float>(false, false), t.template on_host<float>(false, false)), 1e-5) << where;
      EXPECT_LT(norm_error(t.template on_device<float>(true, false), t.template on_host<float>(true, false)), 1e-5) << where;
      EXPECT_LT(norm_error(t.template on_device<T>(false, false), t.template on_host<T>(false, false)), device_tolerance<T>()) << where;
      EXPECT_LT(norm_error(t.template on_device<T>(false, true), t.template on_host<T>(false, true)), device_tolerance<T>()) << where;
      EXPECT_LT(norm_error(t.template on_device<float>(true, true), t.template on_host<float>(true, true)), 1e-5) << where;
    }
  }
}

TEST_F(GemmCuda, MatchesTheHostInFp32) { expect_all_layouts<float>(); }
TEST_F(GemmCuda, MatchesTheHostInBf16) { expect_all_layouts<bf16>(); }
TEST_F(GemmCuda, MatchesTheHostInFp16) { expect_all_layouts<f16>(); }

template <class T>
void expect_addend() {
  DeviceBytes workspace(cuda::gemm_workspace_bytes({}));  // the same for every shape
  for (Shape s : gemm_sizes)
    for (std::int64_t shift : {0, 1}) {
      const Trial<T> t(s, false, true);
      EXPECT_LT(norm_error(t.joined(&workspace, shift), t.joined(nullptr, shift)), device_tolerance<T>()) << s;
    }
}
TEST_F(GemmCuda, AddsAResidual) { expect_addend<float>(), expect_addend<bf16>(), expect_addend<f16>(); }

/// Columns of wider matrices, scaled: a from its third on, c from its fifth on.
template <class T>
void expect_columns() {
  DeviceBytes device_workspace(cuda::gemm_workspace_bytes({}));  // the same for every shape
  for (Shape s : gemm_sizes)
    for (bool a_transposed : {false, true})
      for (bool accumulate : {false, true}) {
        const std::int64_t a_step = (a_transposed ? s.M : s.K) + 9, c_step = s.N + 13;
        const auto a = random_values<T>((a_transposed ? s.K : s.M) * a_step, 1), b = random_values<T>(s.K * s.N, 2);
        std::vector<T> c = random_values<T>(s.M * c_step, 4);
        DeviceArray<T> there_a(a, 0), there_b(b, 0), there_c(c, 0);
        const auto product = [&](T* c, const T* a, const T* b) {
          return Gemm{.c = c + 5,
                      .a = a + 3,
                      .b = b,
                      .M = s.M,
                      .N = s.N,
                      .K = s.K,
                      .a_transposed = a_transposed,
                      .accumulate = accumulate,
                      .in = dtype_of<T>(),
                      .out = dtype_of<T>(),
                      .scale = 0.75f,
                      .a_stride = a_step,
                      .c_stride = c_step};
        };
        const Gemm here = product(c.data(), a.data(), b.data()), there = product(there_c.data(), there_a.data(), there_b.data());
        Workspace workspace(host::gemm_workspace_bytes(here));
        host::gemm(workspace.context(), here);
        cuda::gemm(device_workspace.context(), there);
        EXPECT_LT(norm_error(there_c.host(), c), device_tolerance<T>()) << s;
      }
}
TEST_F(GemmCuda, ScalesColumnsOfWiderMatrices) { expect_columns<float>(), expect_columns<bf16>(), expect_columns<f16>(); }

// A chunk of tokens may begin on any element. The aligned product comes first: its algorithm must not serve the others.
TEST_F(GemmCuda, TakesOperandsOnAnyElement) {
  const Trial<bf16> t({33, 40, 64}, false, true);
  const auto expected = t.on_host<bf16>(false, true);
  for (std::int64_t shift : {0, 1, 2, 8}) EXPECT_LT(norm_error(t.on_device<bf16>(false, true, shift), expected), 1e-2) << shift;
}

TEST_F(GemmCuda, SameBitsTwice) {
  expect_same_bits_on_device([] { return digest(Trial<bf16>({77, 48, 130}, true, false).on_device<float>(true, false)); });
}

// A shape that no other test of this file has met: a product keeps its algorithm for the life of the process.
TEST_F(GemmCuda, SearchKeepsItsChoicesInAFile) {
  const std::string file = ::testing::TempDir() + fmt::format("gemm-{}/choices.json", getpid());
  auto run = [](Shape s) { return Trial<float>(s, false, false).on_device<float>(false, false); };
  std::string chosen, product;
  {
    cuda::KernelSearch search(file);
    run({29, 31, 37});
    EXPECT_EQ(search.searched(), 1);
    run({29, 31, 37});
    EXPECT_EQ(search.searched(), 1) << "a product is searched once";
    EXPECT_TRUE(search.save());
    product = "29 x 31 x 37, rows of 37 and 31, flags 0, on 256 256 256";
    ASSERT_TRUE(search.find(product));
    chosen = *search.find(product);
  }
  {
    cuda::KernelSearch search(file);
    ASSERT_TRUE(search.find(product));
    EXPECT_EQ(*search.find(product), chosen);
  }
  // Damaged files and choices of other machines are none.
  for (const char* text : {"{", "[]", "{\"another GPU\": {\"29 x 31 x 37, rows of 37 and 31, flags 0, on 256 256 256\": \"0\"}}"}) {
    std::ofstream(file) << text;
    cuda::KernelSearch search(file);
    EXPECT_FALSE(search.find(product)) << text;
  }
  std::filesystem::remove_all(std::filesystem::path(file).parent_path());
}

TEST_F(GemmCuda, SearchReadsWhatItWrote) {
  const std::string file = ::testing::TempDir() + fmt::format("gemm-{}.json", getpid());
  const Trial<float> t({41, 43, 47}, false, false);
  {
    cuda::KernelSearch search(file);
    t.on_device<float>(false, false);
    ASSERT_TRUE(search.save());
  }
  std::string text;
  std::getline(std::ifstream(file), text, '\0');
  // The same words for a product that this process has not met: it must run with them and search nothing.
  const std::string known = "41 x 43 x 47", fresh = "43 x 43 x 47";
  text.replace(text.find(known), known.size(), fresh);
  auto expect_searches = [&](Shape s, int searches) {
    std::ofstream(file) << text;
    cuda::KernelSearch search(file);
    const Trial<float> other(s, false, false);
    EXPECT_LT(norm_error(other.on_device<float>(false, false), other.on_host<float>(false, false)), 1e-5);
    EXPECT_EQ(search.searched(), searches);
  };
  expect_searches({43, 43, 47}, 0);
  // An algorithm that cuBLASLt does not know is searched anew.
  text.replace(text.find(fresh), fresh.size(), "47 x 43 x 47");
  const std::size_t words = text.find(": \"") + 3;
  std::fill(text.begin() + static_cast<std::ptrdiff_t>(words), text.begin() + static_cast<std::ptrdiff_t>(text.find('"', words)), 'f');
  text.replace(words + 16, 1, " ");
  expect_searches({47, 43, 47}, 1);
  std::filesystem::remove(file);
}

#ifdef TESSERA_EMULATED_GPU
// The emulated GPU has four multiprocessors.
TEST_F(GemmCuda, LeavesMultiprocessorsToWhatRunsBesideIt) {
  const Trial<float> t({31, 37, 41}, false, false);
  const auto taken = [&](int room) {
    const RoomBeside beside(room);
    EXPECT_LT(norm_error(t.on_device<float>(false, false), t.on_host<float>(false, false)), 1e-5);
    return emulator::multiprocessors_of_product();
  };
  EXPECT_EQ(taken(0), 0) << "all";
  EXPECT_EQ(taken(1), 3);
  EXPECT_EQ(taken(0), 0) << "the room is a part of the product's key";
  EXPECT_EQ(taken(16), 2) << "no more than half";
  EXPECT_EQ(RoomBeside::multiprocessors(), 0);
}

TEST_F(GemmCuda, LeavesNoneInReproducibleRuns) {
  const Trial<float> t({31, 37, 43}, false, false);
  DeviceArray<float> a(t.a, 0), b(t.b, 0), c(std::vector<float>(31 * 37), 0);
  const Gemm g = t.product(c.data(), a.data(), b.data(), nullptr, false, DType::f32);
  DeviceBytes workspace(cuda::gemm_workspace_bytes(g));
  Context context = workspace.context();
  context.reproducible = true;
  const RoomBeside beside(1);
  cuda::gemm(context, g);
  EXPECT_EQ(emulator::multiprocessors_of_product(), 0);
}

TEST_F(GemmCuda, ASearchKnowsProductsWithRoomFromThoseWithout) {
  cuda::KernelSearch search("");
  const Trial<float> t({59, 53, 61}, false, false);
  t.on_device<float>(false, false);
  const RoomBeside beside(1);
  t.on_device<float>(false, false);
  EXPECT_EQ(search.searched(), 2);
}

TEST_F(GemmCuda, SearchTakesTheFastest) {
  const std::string file = ::testing::TempDir() + fmt::format("gemm-{}.json", getpid());
  const Trial<float> t({53, 59, 61}, false, false);
  {
    cuda::KernelSearch search(file);
    t.on_device<float>(false, false);
  }
  const int before = emulator::products_of_algorithm(2);
  t.on_device<float>(false, false);
  EXPECT_EQ(emulator::products_of_algorithm(2), before + 1);
}
#endif

}  // namespace
}  // namespace tessera::kernels::testing::gemm_cuda_test
