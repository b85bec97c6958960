// Matrix product on cuBLASLt. Our matrices are row-major and cuBLAS' column-major, where ours read as their transposes:
// c(M,N) = a b is c^T = b^T a^T, so cuBLAS' first operand is b, its second a, and its m, n are our N, M.
#include <cublasLt.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <sstream>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "kernels/cuda/kernel_search.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/gemm/gemm_sizes.hpp"
#include "kernels/gemm/packed_codes.hpp"
#include "kernels/gemm/room.hpp"
#include "kernels/gemm/wide_bias.hpp"

namespace tessera::kernels::cuda {
namespace {

constexpr std::size_t workspace_bytes = cublaslt_workspace;

void check(cublasStatus_t status, const char* call, const Gemm& g) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(ExitCode::environment, "{}: {} for M={} N={} K={} in {} out {}", call, cublasLtGetStatusString(status), g.M, g.N, g.K, name_of(g.in),
       name_of(g.out));
}
#define TESSERA_CUBLAS_CHECK(call, g) check((call), #call, (g))

cudaDataType_t type_of(DType t) {
  switch (t) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    case DType::e4m3:
      return CUDA_R_8F_E4M3;
    case DType::e5m2:
      return CUDA_R_8F_E5M2;
    case DType::i64:
    case DType::u16:
    case DType::u32:
      break;
  }
  fail(ExitCode::internal, "gemm of {}", name_of(t));
}

cublasLtHandle_t handle() {
  static const cublasLtHandle_t made = [] {
    cublasLtHandle_t h = nullptr;
    TESSERA_CUBLAS_CHECK(cublasLtCreate(&h), Gemm{});
    return h;
  }();
  return made;
}

/// Bytes that a pointer is a multiple of, up to the 256 that cuBLASLt takes for granted when it is not told.
std::uint32_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p) | 256;
  return static_cast<std::uint32_t>(address & ~(address - 1));
}

/// What cuBLAS calls C, and calls D where it is written.
const void* added_to(const Gemm& g) { return g.addend ? g.addend : g.c; }

struct Key {
  std::int64_t M, N, K, a_step, c_step;
  std::uint32_t a_alignment, b_alignment, c_alignment;  ///< of c and addend the lesser
  int flags;
  int room;  ///< multiprocessors that the product leaves to others
  friend bool operator==(const Key&, const Key&) = default;
};
struct KeyHash {
  std::size_t operator()(const Key& k) const {
    std::size_t h = 1469598103934665603u;
    const std::uint32_t alignment = k.a_alignment << 20 | k.b_alignment << 10 | k.c_alignment;
    for (std::int64_t v : {k.M, k.N, k.K, k.a_step, k.c_step, std::int64_t{alignment}, std::int64_t{k.flags}, std::int64_t{k.room}})
      h = (h ^ static_cast<std::size_t>(v)) * 1099511628211u;
    return h;
  }
};
/// Which types codes have, and how many scales.
int flags_of(const std::optional<Gemm::Fp8>& codes) {
  if (!codes) return 0;
  return 1 | (codes->a.type == DType::e5m2) << 1 | (codes->b.type == DType::e5m2) << 2 | (codes->a.scaling == Fp8Scaling::rows) << 3;
}
Key key_of(const Context& context, const Gemm& g) {
  return {g.M,
          g.N,
          g.K,
          g.a_step(),
          g.c_step(),
          alignment_of(g.a),
          alignment_of(g.b),
          std::min(alignment_of(g.c), alignment_of(added_to(g))),
          g.a_transposed | g.b_transposed << 1 | g.accumulate << 2 | (g.bias != nullptr) << 3 | (g.in == DType::bf16) << 4 |
              (g.out == DType::bf16) << 5 | context.reproducible << 6 | (g.addend != nullptr) << 7 | (g.in == DType::f16) << 8 |
              (g.out == DType::f16) << 9 | flags_of(g.fp8) << 10,
          context.reproducible ? 0 : RoomBeside::multiprocessors()};
}

/// The product's name in the file of a search.
std::string words_of(const Key& k) {
  return fmt::format("{} x {} x {}, rows of {} and {}, flags {}, on {} {} {}{}", k.M, k.N, k.K, k.a_step, k.c_step, k.flags, k.a_alignment,
                     k.b_alignment, k.c_alignment, k.room > 0 ? fmt::format(", beside {} blocks", k.room) : "");
}

constexpr int most_candidates = 16;

/// Of this thread's device.
int multiprocessors() {
  int device = 0, count = 0;
  TESSERA_CUDA_CHECK(cudaGetDevice(&device));
  TESSERA_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

/// A product's description and the algorithm that runs it; kept for the life of the process. Operands inside a buffer may lie on any
/// element: an algorithm that was chosen for better aligned ones would fault.
class Plan {
 public:
  Plan(const Context& context, const Gemm& g) {
    TESSERA_CUBLAS_CHECK(cublasLtMatmulDescCreate(&description_, CUBLAS_COMPUTE_32F, CUDA_R_32F), g);
    set(CUBLASLT_MATMUL_DESC_TRANSA, g.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, g);
    set(CUBLASLT_MATMUL_DESC_TRANSB, g.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, g);
    if (const int room = key_of(context, g).room; room > 0) {
      const std::int32_t all = multiprocessors();
      set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, std::max(all - room, all / 2), g);
    }
    if (g.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS, g);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(g.in), g);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias, g);  // the heuristic looks at its alignment
    }
    if (g.fp8) {
      const int mode =
          g.fp8->a.scaling == Fp8Scaling::rows ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode, g);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode, g);
      set_scales(g);
    }
    b_ = layout(g.fp8 ? g.fp8->b.type : g.in, g.b_transposed ? g.K : g.N, g.b_transposed ? g.N : g.K, g.b_transposed ? g.K : g.N, g);
    a_ = layout(g.fp8 ? g.fp8->a.type : g.in, g.a_transposed ? g.M : g.K, g.a_transposed ? g.K : g.M, g.a_step(), g);
    c_ = layout(g.out, g.N, g.M, g.c_step(), g);
    choose(context, g);
  }
  Plan(const Plan&) = delete;

  void run(const Context& context, const Gemm& g) const { TESSERA_CUBLAS_CHECK(start(context, g), g); }

 private:
  cublasStatus_t start(const Context& context, const Gemm& g) const {
    // The description holds the addresses of bias and scales; calls of one plan come from one lane's thread at a time.
    if (g.fp8) set_scales(g);
    if (g.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias, g);
    const float beta = g.accumulate ? 1 : g.addend ? g.addend_scale : 0;
    return cublasLtMatmul(handle(), description_, &g.scale, g.b, b_, g.a, a_, &beta, added_to(g), c_, g.c, c_, &algorithm_,
                          context.workspace.data(), std::min(context.workspace.size(), workspace_bytes),
                          static_cast<cudaStream_t>(context.stream));
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value, const Gemm& g) const {
    TESSERA_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(description_, attribute, &value, sizeof value), g);
  }
  /// cuBLAS' first operand is our b.
  void set_scales(const Gemm& g) const {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(g.fp8->b.scales), g);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(g.fp8->a.scales), g);
  }
  static cublasLtMatrixLayout_t layout(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t step, const Gemm& g) {
    cublasLtMatrixLayout_t made = nullptr;
    TESSERA_CUBLAS_CHECK(
        cublasLtMatrixLayoutCreate(&made, type_of(dtype), static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), step), g);
    return made;
  }

  /// cuBLAS' first choice, or the fastest where a search is under way. Reproducible: the first that does not split K, so that the sum's
  /// order is the algorithm's own, and the same in every run.
  void choose(const Context& context, const Gemm& g) {
    KernelSearch* search = context.reproducible ? nullptr : KernelSearch::active();
    if (search && !search->wanted().products) search = nullptr;
    const std::string product = search ? words_of(key_of(context, g)) : "";
    if (const std::string* known = search ? search->find(product) : nullptr; known && from_words(*known)) return;
    const std::vector<cublasLtMatmulHeuristicResult_t> found = candidates(context, g, search ? most_candidates : 1);
    if (found.empty())
      fail(ExitCode::environment, "cuBLASLt has no algorithm for M={} N={} K={} in {} out {}", g.M, g.N, g.K, name_of(g.in),
           name_of(g.out));
    algorithm_ = found.front().algo;
    if (!search) return;
    float best = std::numeric_limits<float>::infinity();
    for (const cublasLtMatmulHeuristicResult_t& candidate : found) {
      const cublasLtMatmulAlgo_t fastest = std::exchange(algorithm_, candidate.algo);
      const float time = seconds_of_candidate(context, g, best);
      if (time < best)
        best = time;
      else
        algorithm_ = fastest;
    }
    if (!std::isfinite(best))
      fail(ExitCode::environment, "cuBLASLt proposes {} algorithms for M={} N={} K={} in {} out {} and runs none of them", found.size(),
           g.M, g.N, g.K, name_of(g.in), name_of(g.out));
    search->keep(product, to_words());
  }

  /// The heuristic also lists algorithms that refuse the product when they are started.
  float seconds_of_candidate(const Context& context, const Gemm& g, float best) const {
    if (start(context, g) != CUBLAS_STATUS_SUCCESS) {
      cudaGetLastError();  // or the next launch would report it
      return std::numeric_limits<float>::infinity();
    }
    return best_seconds(
        context.stream, [&] { run(context, g); }, best);
  }

  std::vector<cublasLtMatmulHeuristicResult_t> candidates(const Context& context, const Gemm& g, int most) const {
    cublasLtMatmulPreference_t preference = nullptr;
    TESSERA_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference), g);
    auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      TESSERA_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value), g);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(g.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(g.a));
    // The lesser for both, as in the key: calls of one plan may have them the other way round.
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, std::min(alignment_of(g.c), alignment_of(added_to(g))));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::min(alignment_of(g.c), alignment_of(added_to(g))));
    // Where K is split, partial sums may be kept in c's type unless it is asked otherwise.
    if (context.reproducible)
      prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
    else if (g.out != DType::f32)
      prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
    int count = 0;
    TESSERA_CUBLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(handle(), description_, b_, a_, c_, c_, preference, most, found.data(), &count), g);
    cublasLtMatmulPreferenceDestroy(preference);
    found.resize(static_cast<std::size_t>(count));
    std::erase_if(found, [](const auto& candidate) { return candidate.state != CUBLAS_STATUS_SUCCESS; });
    return found;
  }

  /// cuBLASLt lets an algorithm be kept as it stands for the same version of the library.
  std::string to_words() const {
    std::string words;
    for (std::uint64_t word : algorithm_.data) words += fmt::format("{:016x} ", word);
    words.pop_back();
    return words;
  }
  bool from_words(const std::string& words) {
    std::istringstream in(words);
    cublasLtMatmulAlgo_t read{};
    for (std::uint64_t& word : read.data) in >> std::hex >> word;
    cublasLtMatmulHeuristicResult_t checked{};
    if (in.fail() || cublasLtMatmulAlgoCheck(handle(), description_, b_, a_, c_, c_, &read, &checked) != CUBLAS_STATUS_SUCCESS ||
        checked.workspaceSize > workspace_bytes)
      return false;
    algorithm_ = read;
    return true;
  }

  cublasLtMatmulDesc_t description_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

/// What cuBLASLt asks of codes. It has no blocks but on one generation, with scales in an order of their own.
bool is_product_of_codes(const Gemm& g) {
  const Fp8Scaling scaling = g.fp8->a.scaling;
  return g.fp8->b.scaling == scaling && (scaling == Fp8Scaling::tensor || scaling == Fp8Scaling::rows) && g.M % fp8_dim == 0 &&
         g.N % fp8_dim == 0 && g.K % fp8_dim == 0;
}

const Plan& plan_of(const Context& context, const Gemm& g) {
  static std::mutex mutex;
  static std::unordered_map<Key, Plan, KeyHash> plans;
  std::lock_guard lock(mutex);
  const Key key = key_of(context, g);
  if (auto found = plans.find(key); found != plans.end()) return found->second;
  return plans.try_emplace(key, context, g).first->second;
}

}  // namespace

void gemm(const Context& context, const Gemm& g) {
  TESSERA_REQUIRE(g.M >= 0 && g.N >= 0 && g.K > 0, "gemm of M={} N={} K={}", g.M, g.N, g.K);
  TESSERA_REQUIRE(g.out == DType::f32 || g.out == g.in, "gemm of {} into {}", name_of(g.in), name_of(g.out));
  TESSERA_REQUIRE(g.is_legal(), "gemm adds to c or an addend that lies elsewhere, scales without a bias, and has rows beside each other");
  TESSERA_REQUIRE(!g.bias || alignment_of(g.bias) >= 16, "a bias begins on 16 bytes");
  TESSERA_REQUIRE(!g.b_packed, "a GPU has no packed form");
  TESSERA_REQUIRE(!g.fp8 || is_product_of_codes(g), "cuBLASLt multiplies codes with a scale a matrix or a row, by multiples of 16");
  TESSERA_REQUIRE(context.workspace.size() >= workspace_bytes, "gemm needs {} bytes of workspace, has {}", workspace_bytes,
                  context.workspace.size());
  if (g.M == 0 || g.N == 0) return;
  if (!g.bias || g.out == g.in) return plan_of(context, g).run(context, g);
  Gemm without = g;
  without.bias = nullptr;
  plan_of(context, without).run(context, without);
  add_wide_bias(context, g);
}

void gemm_pack_b(const Context& context, void* packed, const Gemm& g) {
  TESSERA_REQUIRE(g.fp8, "a GPU has no packed form");
  cuda::fp8_quantize(context, quantize_b(packed, g));
}

}  // namespace tessera::kernels::cuda
