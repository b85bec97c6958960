// Products of matrices against an exhaustive search of cuBLASLt, and attention against the fastest product.
#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "device_benchmark.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/attention/cudnn_attention.hpp"
#include "kernels/cuda/kernel_search.hpp"
#include "kernels/gemm/gemm.hpp"

namespace tessera::benchmarks {
namespace {

using namespace kernels;

constexpr int most_algorithms = 256;  // more than cuBLASLt returns for any shape

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(ExitCode::environment, "{}: {}", what, cublasLtGetStatusString(status));
}

cublasLtHandle_t handle() {
  static const cublasLtHandle_t made = [] {
    cublasLtHandle_t h = nullptr;
    check(cublasLtCreate(&h), "cublasLtCreate");
    return h;
  }();
  return made;
}

/// One product with every algorithm that cuBLASLt's heuristic returns for it, set up apart from our own gemm. Row-major operands are read
/// as transposed ones, so cuBLASLt's first operand is our b.
class Search {
 public:
  Search(const Gemm& g, void* workspace, std::size_t workspace_bytes) : g_(g), workspace_(workspace), workspace_bytes_(workspace_bytes) {
    const cublasOperation_t first = g.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, second = g.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(cublasLtMatmulDescCreate(&description_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    check(cublasLtMatmulDescSetAttribute(description_, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first), "TRANSA");
    check(cublasLtMatmulDescSetAttribute(description_, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second), "TRANSB");
    b_ = layout(g.in, g.b_transposed ? g.K : g.N, g.b_transposed ? g.N : g.K);
    a_ = layout(g.in, g.a_transposed ? g.M : g.K, g.a_transposed ? g.K : g.M);
    c_ = layout(g.out, g.N, g.M);
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes_,
                                               sizeof workspace_bytes_),
          "MAX_WORKSPACE_BYTES");
    found_.resize(most_algorithms);
    int count = 0;
    check(cublasLtMatmulAlgoGetHeuristic(handle(), description_, b_, a_, c_, c_, preference, most_algorithms, found_.data(), &count),
          "cublasLtMatmulAlgoGetHeuristic");
    found_.resize(static_cast<std::size_t>(count));
    cublasLtMatmulPreferenceDestroy(preference);
  }

  std::size_t algorithms() const { return found_.size(); }
  cublasStatus_t run(std::size_t algorithm, cudaStream_t stream) const {
    const float alpha = 1, beta = g_.accumulate ? 1 : 0;
    return cublasLtMatmul(handle(), description_, &alpha, g_.b, b_, g_.a, a_, &beta, g_.c, c_, g_.c, c_, &found_[algorithm].algo,
                          workspace_, workspace_bytes_, stream);
  }
  /// The algorithm whose fastest of three calls is the fastest.
  std::size_t fastest(cudaStream_t stream) const {
    std::size_t best = 0;
    double best_seconds = 1e30;
    for (std::size_t a = 0; a < found_.size(); ++a) {
      if (run(a, stream) != CUBLAS_STATUS_SUCCESS) continue;  // the heuristic lists some that a shape then refuses
      for (int turn = 0; turn < 3; ++turn) {
        const double seconds = time_once(stream, [&](cudaStream_t s) { run(a, s); });
        if (seconds < best_seconds) best = a, best_seconds = seconds;
      }
    }
    return best;
  }

 private:
  static cublasLtMatrixLayout_t layout(DType dtype, std::int64_t rows, std::int64_t columns) {
    cublasLtMatrixLayout_t made = nullptr;
    check(cublasLtMatrixLayoutCreate(&made, dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF, static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(columns), rows),
          "cublasLtMatrixLayoutCreate");
    return made;
  }

  Gemm g_;
  void* workspace_;
  std::size_t workspace_bytes_;
  cublasLtMatmulDesc_t description_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> found_;
};

Context on(cudaStream_t stream, void* workspace, std::size_t bytes) {
  return {.workspace = {static_cast<std::byte*>(workspace), bytes}, .backend = Backend::cuda, .stream = stream};
}

void add_product(Part& part, const std::string& name, Gemm g) {
  g.a = part.values(g.M * g.K, g.in), g.b = part.values(g.N * g.K, g.in), g.c = part.values(g.M * g.N, g.out);
  const std::size_t bytes = gemm_workspace_bytes(g, Backend::cuda);
  void* workspace = part.bytes(bytes);
  const auto search = std::make_shared<Search>(g, workspace, bytes);
  const std::size_t best = search->fastest(nullptr);
  const double flops = 2.0 * static_cast<double>(g.M) * static_cast<double>(g.N) * static_cast<double>(g.K);
  const std::string limit = fmt::format("best of {} for {}", search->algorithms(), name);
  part.contenders.push_back({.name = limit, .amount = flops, .flops = true, .run = [=](cudaStream_t stream) {
                               check(search->run(best, stream), "cublasLtMatmul");
                             }});
  part.contenders.push_back({.name = name, .limit = limit, .amount = flops, .flops = true, .target = 0.98, .run = [=](cudaStream_t stream) {
                               gemm(on(stream, workspace, bytes), g);
                             }});
}

}  // namespace

void add_products(Part& part, const Settings& s) {
  const std::int64_t M = s.tokens, C = s.width, F = 4 * s.width;
  for (DType in : {DType::bf16, DType::f32}) {
    const auto named = [&](const char* what) { return fmt::format("gemm {} {}", what, name_of(in)); };
    add_product(part, named("forward"), {.M = M, .N = F, .K = C, .b_transposed = true, .in = in, .out = in});
    add_product(part, named("input gradient"), {.M = M, .N = C, .K = F, .in = in, .out = in});
    add_product(part, named("weight gradient"),
                {.M = F, .N = C, .K = M, .a_transposed = true, .accumulate = true, .in = in, .out = DType::f32});
    add_product(part, named("square"), {.M = C, .N = C, .K = C, .b_transposed = true, .in = in, .out = in});
  }
}

namespace {

/// Attention's operands on the device, and its passes as contenders.
struct Attention {
  AttentionShape shape;
  const void *qkv, *d_out;
  void *out, *d_qkv;
  float* lse;
  void* workspace;
  std::size_t bytes;

  Attention(Part& part, const AttentionShape& s) : shape(s) {
    const std::int64_t rows = s.B * s.T, in = rows * (s.H + 2 * s.G) * s.D;
    qkv = part.values(in, s.dtype), d_out = part.values(rows * s.H * s.D, s.dtype);
    out = part.values(rows * s.H * s.D, s.dtype), d_qkv = part.values(in, s.dtype);
    lse = static_cast<float*>(part.values(s.B * s.H * s.T, DType::f32));
    AttentionShape largest = s;
    largest.path = AttentionPath::cudnn;
    bytes = std::max(attention_forward_workspace_bytes(largest, Backend::cuda), attention_backward_workspace_bytes(largest, Backend::cuda));
    workspace = part.bytes(bytes);
  }
  Attention by(AttentionPath path) const {
    Attention a = *this;
    a.shape.path = path;
    return a;
  }
  void forward(cudaStream_t stream) const {
    attention_forward(on(stream, workspace, bytes), {.out = out, .lse = lse, .qkv = qkv, .shape = shape});
  }
  void backward(cudaStream_t stream) const {
    attention_backward(on(stream, workspace, bytes), {.d_qkv = d_qkv, .d_out = d_out, .qkv = qkv, .out = out, .lse = lse, .shape = shape});
  }
  /// Causal: half of the two products of T x T x D a head; the backward pass has five.
  double flops(bool backward) const {
    const double half = static_cast<double>(shape.B * shape.H) * static_cast<double>(shape.T * shape.T) * static_cast<double>(shape.D);
    return (backward ? 5 : 2) * half;
  }
};

/// Ours, cuDNN's and what a run's start would choose, forward and backward. Ours is measured against cuDNN's where there is one.
void add_attention_of(Part& part, const AttentionShape& shape, const std::string& product) {
  const Attention attention(part, shape);
  for (bool backward : {false, true}) {
    const auto pass = backward ? kernels::cuda::AttentionPass::backward : kernels::cuda::AttentionPass::forward;
    const auto named = [&](const char* whose) {
      return fmt::format("{}attention {} T={} D={} H={} G={}", whose, backward ? "backward" : "forward", shape.T, shape.D, shape.H,
                         shape.G);
    };
    const auto add = [&](const char* whose, AttentionPath path, const std::string& limit, double target) {
      part.contenders.push_back(
          {.name = named(whose),
           .limit = limit,
           .amount = attention.flops(backward),
           .flops = true,
           .target = target,
           .run = [a = attention.by(path), backward](cudaStream_t stream) { backward ? a.backward(stream) : a.forward(stream); }});
    };
    AttentionShape theirs = shape;
    theirs.path = AttentionPath::cudnn;
    if (!kernels::cuda::why_not_cudnn(theirs, pass).empty()) {
      add("", AttentionPath::native, product, 0);
      continue;
    }
    add("cuDNN ", AttentionPath::cudnn, product, 0);
    add("", AttentionPath::native, named("cuDNN "), backward ? 0.6 : 0.7);
    add("chosen ", AttentionPath::fastest, named("cuDNN "), 0.98);
    kernels::cuda::KernelSearch search("");  // as at a run's start
    const Attention chosen = attention.by(AttentionPath::fastest);
    backward ? chosen.backward(nullptr) : chosen.forward(nullptr);
  }
}

}  // namespace

void add_attention(Part& part, const Settings& s) {
  // The limit: what a product of the same precision reaches, so that the share says how well tensor cores are fed.
  Part products;
  add_product(products, "gemm", {.M = s.tokens, .N = s.width, .K = s.width, .b_transposed = true, .in = DType::bf16, .out = DType::bf16});
  Contender limit = products.contenders.back();
  limit.name = "bf16 product", limit.limit = "", limit.target = 0;
  part.memory = products.memory;
  part.contenders.push_back(limit);
  for (std::int64_t D : {64, 96, 128}) {
    const std::int64_t G = std::max<std::int64_t>(1, s.width / D / 4), H = 4 * G, T = std::min(s.context, s.tokens);
    add_attention_of(part, {.B = s.tokens / T, .T = T, .H = H, .G = G, .D = D, .dtype = DType::bf16}, limit.name);
  }
}

}  // namespace tessera::benchmarks
