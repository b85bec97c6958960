// The calls of cuBLASLt that our code makes: one algorithm, plain loops with fp32 sums.
#include <cublasLt.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/types.hpp"
#include "emulator.hpp"

namespace {

using tessera::bf16;
using tessera::e4m3;
using tessera::e5m2;
using tessera::f16;

struct Description {
  cublasOperation_t first = CUBLAS_OP_N, second = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  cudaDataType_t bias_type = CUDA_R_32F;
  const void* bias = nullptr;
  const float *first_scales = nullptr, *second_scales = nullptr;  // of codes
  std::int32_t multiprocessors = 0;                               // that the product may take; 0: all
  int first_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, second_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
};
struct Layout {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t stride;
};

/// What the code promised of its operands when it asked for an algorithm; the algorithm carries it, and a product that breaks it fails.
struct Promise {
  std::uint32_t first = 256, second = 256, c = 256, d = 256;
  std::uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t number = 0;   // of the algorithm
  std::uint32_t slow = 0;     // where several were asked for: all but the third
  std::uint32_t refuses = 0;  // where several were asked for: the first, when it is started
  std::int32_t multiprocessors = 0;
};
static_assert(sizeof(Promise) <= sizeof(cublasLtMatmulAlgo_t));
constexpr int algorithms = 4;
int g_products[algorithms] = {};
int g_multiprocessors = 0;  // of the last product
bool lies_on(const void* p, std::uint32_t alignment) { return reinterpret_cast<std::uintptr_t>(p) % alignment == 0; }

bool is_code(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

float element(const void* p, cudaDataType_t type, std::int64_t i) {
  if (type == CUDA_R_8F_E4M3) return static_cast<float>(static_cast<const e4m3*>(p)[i]);
  if (type == CUDA_R_8F_E5M2) return static_cast<float>(static_cast<const e5m2*>(p)[i]);
  if (type == CUDA_R_16BF) return static_cast<float>(static_cast<const bf16*>(p)[i]);
  return type == CUDA_R_16F ? static_cast<float>(static_cast<const f16*>(p)[i]) : static_cast<const float*>(p)[i];
}
/// A whole operand as columns of fp32.
std::vector<float> whole(const void* p, const Layout& l) {
  std::vector<float> out(l.rows * l.columns);
  for (std::uint64_t c = 0; c < l.columns; ++c)
    for (std::uint64_t r = 0; r < l.rows; ++r)
      out[c * l.rows + r] = element(p, l.type, static_cast<std::int64_t>(c) * l.stride + static_cast<std::int64_t>(r));
  return out;
}
/// Rows of op(x), each of `depth` values.
std::vector<float> rows_of(const std::vector<float>& x, const Layout& l, bool transposed) {
  if (transposed) return x;
  std::vector<float> out(x.size());
  for (std::uint64_t c = 0; c < l.columns; ++c)
    for (std::uint64_t r = 0; r < l.rows; ++r) out[r * l.columns + c] = x[c * l.rows + r];
  return out;
}

/// A call of cublasLtMatmul as its stream keeps it.
struct Product {
  Description what;
  Layout x, y, out;
  float alpha, beta;

  std::uint64_t m() const { return what.first == CUBLAS_OP_N ? x.rows : x.columns; }
  std::uint64_t n() const { return what.second == CUBLAS_OP_N ? y.columns : y.rows; }
  std::uint64_t depth() const { return what.first == CUBLAS_OP_N ? x.columns : x.rows; }
  std::uint64_t second_depth() const { return what.second == CUBLAS_OP_N ? y.rows : y.columns; }

  /// What of codes a GPU multiplies: rows of both along which it sums, on sixteen bytes, one of them in E4M3 at least, and nothing beside
  /// codes.
  bool is_supported() const {
    const bool codes = is_code(x.type);
    if (codes != is_code(y.type)) return false;
    if (!codes) return !what.first_scales && !what.second_scales;
    const bool whole = m() % 16 == 0 && n() % 16 == 0 && depth() % 16 == 0 && x.stride % 16 == 0 && y.stride % 16 == 0;
    const bool modes = what.first_mode == what.second_mode && (what.first_mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F ||
                                                               what.first_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    return what.first == CUBLAS_OP_T && what.second == CUBLAS_OP_N && whole && modes &&
           (x.type == CUDA_R_8F_E4M3 || y.type == CUDA_R_8F_E4M3) && (out.type == CUDA_R_16BF || out.type == CUDA_R_32F);
  }
  float scale_of(std::uint64_t i, std::uint64_t j) const {
    if (!what.first_scales) return 1;
    const bool rows = what.first_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    return what.first_scales[rows ? i : 0] * what.second_scales[rows ? j : 0];
  }

  void run(const void* first, const void* second, const void* c, void* d) const {
    const std::vector<float> rows = rows_of(whole(first, x), x, what.first == CUBLAS_OP_T);
    const std::vector<float> columns = rows_of(whole(second, y), y, what.second == CUBLAS_OP_N);
    for (std::uint64_t j = 0; j < n(); ++j)
      for (std::uint64_t i = 0; i < m(); ++i) {
        float sum = 0;
        for (std::uint64_t k = 0; k < depth(); ++k) sum += rows[i * depth() + k] * columns[j * depth() + k];
        const auto at = static_cast<std::int64_t>(j) * out.stride + static_cast<std::int64_t>(i);
        float value = alpha * sum * scale_of(i, j) + (beta != 0 ? beta * element(c, out.type, at) : 0);
        if (what.epilogue == CUBLASLT_EPILOGUE_BIAS) value += element(what.bias, what.bias_type, static_cast<std::int64_t>(i));
        if (out.type == CUDA_R_16BF)
          static_cast<bf16*>(d)[at] = bf16(value);
        else if (out.type == CUDA_R_16F)
          static_cast<f16*>(d)[at] = f16(value);
        else
          static_cast<float*>(d)[at] = value;
      }
  }
};

/// Whether the device that is emulated multiplies codes: with a scale a matrix from 8.9 on, with a scale a row on 9.0 alone.
bool has_codes(int scale_mode) {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  return scale_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F ? major == 9 && minor == 0 : 10 * major + minor >= 89;
}

template <class T>
void assign(T& to, const void* from) {
  std::memcpy(&to, from, sizeof to);
}

}  // namespace

namespace tessera::emulator {
int products_of_algorithm(int number) { return g_products[number]; }
int multiprocessors_of_product() { return g_multiprocessors; }
}  // namespace tessera::emulator

extern "C" {
std::size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "emulated"; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t, cudaDataType_t) {
  *description = reinterpret_cast<cublasLtMatmulDesc_t>(new Description);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              std::size_t) {
  auto& d = *reinterpret_cast<Description*>(description);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return assign(d.first, value), CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return assign(d.second, value), CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return assign(d.epilogue, value), CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return assign(d.bias_type, value), CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return assign(d.bias, value), CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return assign(d.first_scales, value), CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return assign(d.second_scales, value), CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return assign(d.first_mode, value), CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return assign(d.second_mode, value), CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: {
      int all = 0;
      cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, 0);
      assign(d.multiprocessors, value);
      return d.multiprocessors > 0 && d.multiprocessors <= all ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    }
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t stride) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Promise);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t) {
  auto& promise = *reinterpret_cast<Promise*>(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return assign(promise.first, value), CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return assign(promise.second, value), CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return assign(promise.c, value), CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return assign(promise.d, value), CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return assign(promise.reduction, value), CUBLAS_STATUS_SUCCESS;
    default:
      return CUBLAS_STATUS_SUCCESS;
  }
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Promise*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
// The real one reads the bias' alignment off its address; and ours promises fp32 sums, which a K that is split may not keep.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int asked, cublasLtMatmulHeuristicResult_t* found,
                                              int* count) {
  Promise promise = *reinterpret_cast<const Promise*>(preference);
  const auto& what = *reinterpret_cast<const Description*>(description);
  const bool lossy = promise.reduction & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
  *count = 0;
  if (what.epilogue == CUBLASLT_EPILOGUE_BIAS && (!what.bias || !lies_on(what.bias, 16))) return CUBLAS_STATUS_INVALID_VALUE;
  if (reinterpret_cast<const Layout*>(c_layout)->type != CUDA_R_32F && lossy) return CUBLAS_STATUS_NOT_SUPPORTED;
  promise.multiprocessors = what.multiprocessors;
  *count = std::min(asked, algorithms);
  for (int i = 0; i < *count; ++i) {
    found[i] = {};
    promise.number = static_cast<std::uint32_t>(i);
    promise.slow = asked > 1 && i != 2;
    promise.refuses = asked > 1 && i == 0;
    std::memcpy(&found[i].algo, &promise, sizeof promise);
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  Promise promise;
  assign(promise, algorithm);
  *result = {};
  const bool fits = promise.multiprocessors == reinterpret_cast<const Description*>(description)->multiprocessors;
  return fits && promise.number < algorithms && !promise.refuses ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha, const void* first,
                              cublasLtMatrixLayout_t first_layout, const void* second, cublasLtMatrixLayout_t second_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, std::size_t, cudaStream_t stream) {
  Promise promise;
  assign(promise, algorithm);
  if (!lies_on(first, promise.first) || !lies_on(second, promise.second) || !lies_on(c, promise.c) || !lies_on(d, promise.d) ||
      !lies_on(workspace, 256) || promise.number >= algorithms)
    return CUBLAS_STATUS_INVALID_VALUE;
  // An algorithm is chosen for the multiprocessors that the product may take.
  if (promise.multiprocessors != reinterpret_cast<const Description*>(description)->multiprocessors) return CUBLAS_STATUS_INVALID_VALUE;
  if (promise.refuses) return CUBLAS_STATUS_NOT_SUPPORTED;
  g_multiprocessors = promise.multiprocessors;
  ++g_products[promise.number];
  const Product product{.what = *reinterpret_cast<const Description*>(description),
                        .x = *reinterpret_cast<const Layout*>(first_layout),
                        .y = *reinterpret_cast<const Layout*>(second_layout),
                        .out = *reinterpret_cast<const Layout*>(c_layout),
                        .alpha = *static_cast<const float*>(alpha),
                        .beta = *static_cast<const float*>(beta)};
  if (product.m() != product.out.rows || product.n() != product.out.columns || product.depth() != product.second_depth())
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!product.is_supported() || (is_code(product.x.type) && !has_codes(product.what.first_mode))) return CUBLAS_STATUS_NOT_SUPPORTED;
  tessera::emulator::enqueue(stream, [=] {
    if (promise.slow) std::this_thread::sleep_for(std::chrono::microseconds(500));
    return product.run(first, second, c, d), true;
  });
  return CUBLAS_STATUS_SUCCESS;
}
}
