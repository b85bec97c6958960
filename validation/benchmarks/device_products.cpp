// Products of matrices against an exhaustive search of cuBLASLt, and attention against the fastest product.
#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "device_benchmark.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/attention/cudnn_attention.hpp"
#include "kernels/cuda/kernel_search.hpp"
#include "kernels/gemm/gemm.hpp"

// The emulator has no algorithms to number.
#pragma weak cublasLtMatmulAlgoGetIds
#pragma weak cublasLtMatmulAlgoInit

namespace tessera::benchmarks {
namespace {

using namespace kernels;

constexpr int most_algorithms = 256;  // of one call of the heuristic

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

cudaDataType_t type_of(DType dtype) { return dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF; }

/// One product with all that cuBLASLt's heuristic returns for it, for any algorithm and for each one by its number, set up apart from our
/// own gemm. Row-major operands are read as transposed ones, so cuBLASLt's first operand is our b.
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
    ask(std::nullopt);
    for (int id : ids()) ask(id);
  }

  /// How many were timed, of how many that there are.
  std::string size() const {
    return timed_ == found_.size() ? fmt::format("{}", timed_) : fmt::format("the first {} of {}", timed_, found_.size());
  }
  cublasStatus_t run(std::size_t algorithm, cudaStream_t stream) const {
    const float alpha = 1, beta = g_.accumulate ? 1 : 0;
    return cublasLtMatmul(handle(), description_, &alpha, g_.b, b_, g_.a, a_, &beta, g_.c, c_, g_.c, c_, &found_[algorithm].algo,
                          workspace_, workspace_bytes_, stream);
  }
  /// The algorithm whose fastest of three calls is the fastest, of those that there is time for: the heuristic's own come first.
  std::size_t fastest(cudaStream_t stream, double search_seconds) {
    std::size_t best = 0;
    double best_seconds = 1e30;
    const double begin = now_seconds();
    for (timed_ = 0; timed_ < found_.size() && now_seconds() - begin < search_seconds; ++timed_) {
      if (run(timed_, stream) != CUBLAS_STATUS_SUCCESS) continue;  // the heuristic lists some that a shape then refuses
      double seconds = 1e30;
      for (int turn = 0; turn < 3; ++turn) {
        seconds = std::min(seconds, time_once(stream, [&](cudaStream_t s) { run(timed_, s); }));
        if (turn == 0 && seconds > 1.5 * best_seconds) break;  // not worth two more calls
      }
      if (seconds < best_seconds) best = timed_, best_seconds = seconds;
    }
    return best;
  }

 private:
  static cublasLtMatrixLayout_t layout(DType dtype, std::int64_t rows, std::int64_t columns) {
    cublasLtMatrixLayout_t made = nullptr;
    check(cublasLtMatrixLayoutCreate(&made, type_of(dtype), static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), rows),
          "cublasLtMatrixLayoutCreate");
    return made;
  }

  /// Numbers of all algorithms for these types; none in the emulator.
  std::vector<int> ids() const {
    if (cublasLtMatmulAlgoGetIds == nullptr || cublasLtMatmulAlgoInit == nullptr) return {};
    std::vector<int> ids(most_algorithms);
    int count = 0;
    check(cublasLtMatmulAlgoGetIds(handle(), CUBLAS_COMPUTE_32F, CUDA_R_32F, type_of(g_.in), type_of(g_.in), type_of(g_.out),
                                   type_of(g_.out), most_algorithms, ids.data(), &count),
          "cublasLtMatmulAlgoGetIds");
    ids.resize(static_cast<std::size_t>(count));
    return ids;
  }

  /// Adds what the heuristic proposes of one algorithm, or of all.
  void ask(std::optional<int> id) {
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes_,
                                               sizeof workspace_bytes_),
          "MAX_WORKSPACE_BYTES");
    // Sums of pieces of K in fp32, as ours are: what rounds them to bf16 in between is no peer.
    const std::uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums, sizeof sums),
          "REDUCTION_SCHEME");
    std::vector<cublasLtMatmulHeuristicResult_t> found(most_algorithms);
    if (id) {
      const std::uint32_t mode = CUBLASLT_SEARCH_LIMITED_BY_ALGO_ID;
      check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_SEARCH_MODE, &mode, sizeof mode), "SEARCH_MODE");
      check(cublasLtMatmulAlgoInit(handle(), CUBLAS_COMPUTE_32F, CUDA_R_32F, type_of(g_.in), type_of(g_.in), type_of(g_.out),
                                   type_of(g_.out), *id, &found[0].algo),
            "cublasLtMatmulAlgoInit");
    }
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle(), description_, b_, a_, c_, c_, preference, most_algorithms, found.data(), &count);
    cublasLtMatmulPreferenceDestroy(preference);
    if (id && status != CUBLAS_STATUS_SUCCESS) return;  // this algorithm does not serve the shape
    check(status, "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < count; ++i)
      if (found[static_cast<std::size_t>(i)].state == CUBLAS_STATUS_SUCCESS) found_.push_back(found[static_cast<std::size_t>(i)]);
  }

  Gemm g_;
  void* workspace_;
  std::size_t workspace_bytes_;
  cublasLtMatmulDesc_t description_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> found_;
  std::size_t timed_ = 0;
};

/// A product with its operands and workspace.
struct Product {
  Gemm g;
  void* workspace;
  std::size_t bytes;

  Product(Part& part, const Gemm& of) : g(of) {
    g.a = part.values(g.M * g.K, g.in), g.b = part.values(g.N * g.K, g.in), g.c = part.values(g.M * g.N, g.out);
    bytes = gemm_workspace_bytes(g, Backend::cuda);
    workspace = part.bytes(bytes);
  }
  double flops() const { return 2.0 * static_cast<double>(g.M) * static_cast<double>(g.N) * static_cast<double>(g.K); }
  /// As a run has it, which chooses among cuBLASLt's proposals at its start.
  Contender chosen(const std::string& name) const {
    {
      kernels::cuda::KernelSearch search("");  // no file: nothing is known, and nothing kept for others
      gemm(on(nullptr, workspace, bytes), g);
    }
    return {.name = name, .amount = flops(), .flops = true, .run = [p = *this](cudaStream_t stream) {
              gemm(on(stream, p.workspace, p.bytes), p.g);
            }};
  }
};

/// The product as a run has it beside the fastest of all.
void add_product(Part& part, const Settings& s, const std::string& name, const Gemm& g) {
  const Product product(part, g);
  const auto search = std::make_shared<Search>(product.g, product.workspace, product.bytes);
  const std::size_t best = search->fastest(nullptr, static_cast<double>(s.search));
  const std::string limit = fmt::format("best of {} for {}", search->size(), name);
  part.contenders.push_back({.name = limit, .amount = product.flops(), .flops = true, .run = [=](cudaStream_t stream) {
                               check(search->run(best, stream), "cublasLtMatmul");
                             }});
  part.contenders.push_back(product.chosen(name));
  part.contenders.back().limit = limit, part.contenders.back().target = 0.98;
}

}  // namespace

namespace {

/// A layer's products in bf16, and the head's, of one step of validation/benchmarks/shapes.py.
struct Model {
  const char* name;
  std::int64_t tokens, C, QKV, F, V;
};
constexpr std::int64_t round_to_64(std::int64_t n) { return std::max<std::int64_t>(64, (n + 63) / 64 * 64); }
constexpr Model models[] = {{"124m", 16 * 1024, 768, 3 * 768, 2048, 50304},
                            {"1.5b", 8 * 2048, 2048, 3 * 2048, 5632, 50304},
                            {"8b-cut", 8192, 4096, 6144, 14336, 128256}};

/// Forward with the weights' rows as columns of the result, and both gradients.
void add_linear(Part& part, const Settings& s, const std::string& name, std::int64_t M, std::int64_t N, std::int64_t K, DType in) {
  const auto named = [&](const char* what) { return fmt::format("gemm {} {} {}", name, what, name_of(in)); };
  add_product(part, s, named("forward"), {.M = M, .N = N, .K = K, .b_transposed = true, .in = in, .out = in});
  add_product(part, s, named("input gradient"), {.M = M, .N = K, .K = N, .in = in, .out = in});
  add_product(part, s, named("weight gradient"),
              {.M = N, .N = K, .K = M, .a_transposed = true, .accumulate = true, .in = in, .out = DType::f32});
}

/// In the emulator, whose settings are small, all sizes shrink alike.
void add_model(Part& part, const Settings& s, const Model& model) {
  const std::int64_t by = std::max<std::int64_t>(1, 8192 / s.tokens), M = model.tokens / by, C = std::max<std::int64_t>(64, model.C / by);
  const auto size = [&](std::int64_t n) { return round_to_64(n / by); };
  add_linear(part, s, fmt::format("{} qkv", model.name), M, size(model.QKV), C, DType::bf16);
  add_linear(part, s, fmt::format("{} gate and up", model.name), M, size(2 * model.F), C, DType::bf16);
  add_linear(part, s, fmt::format("{} down", model.name), M, C, size(model.F), DType::bf16);
  // The head in pieces of rows: its logits are never whole.
  add_product(
      part, s, fmt::format("gemm {} head bf16", model.name),
      {.M = std::min<std::int64_t>(M, 4096 / by), .N = size(model.V), .K = C, .b_transposed = true, .in = DType::bf16, .out = DType::f32});
}

}  // namespace

std::vector<Group> product_groups() {
  std::vector<Group> groups;
  for (DType in : {DType::bf16, DType::f32})
    groups.push_back({fmt::format("products-{}", name_of(in)), [in](Part& part, const Settings& s) {
                        add_linear(part, s, "wide", s.tokens, 4 * s.width, s.width, in);
                        add_product(part, s, fmt::format("gemm square {}", name_of(in)),
                                    {.M = s.width, .N = s.width, .K = s.width, .b_transposed = true, .in = in, .out = in});
                      }});
  for (const Model& model : models)
    groups.push_back({fmt::format("products-{}", model.name), [model](Part& part, const Settings& s) { add_model(part, s, model); }});
  return groups;
}

namespace {

/// Attention's operands on the device, and its passes as contenders.
struct Attention {
  AttentionShape shape;
  const void *qkv, *kv, *d_out;  ///< kv: another rank's, of a block
  void *out, *d_qkv;
  float* lse;
  void* workspace;
  std::size_t bytes;

  Attention(Part& part, const AttentionShape& s) : shape(s) {
    const std::int64_t rows = s.B * s.T, in = rows * (s.H + 2 * s.G) * s.D;
    qkv = part.values(in, s.dtype), kv = part.values(rows * 2 * s.G * s.D, s.dtype), d_out = part.values(rows * s.H * s.D, s.dtype);
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
    attention_forward(on(stream, workspace, bytes), {.out = out, .lse = lse, .qkv = packed_qkv(qkv, shape), .shape = shape});
  }
  void backward(cudaStream_t stream) const {
    attention_backward(
        on(stream, workspace, bytes),
        {.d_qkv = packed_qkv(d_qkv, shape), .d_out = d_out, .qkv = packed_qkv(qkv, shape), .out = out, .lse = lse, .shape = shape});
  }
  /// All queries against half of the keys, as many FLOPs as those of the rank's own. The gradients of a block lie in d_qkv.
  void of_block(cudaStream_t stream, bool backward) const {
    const AttentionBlock block{shape, {0, shape.T}, {0, shape.T / 2}};
    if (!backward) {
      attention_block_forward(on(stream, workspace, bytes),
                              {.out = out, .lse = lse, .qkv = packed_kv(packed_qkv(qkv, shape).q, kv, shape), .block = block});
      return;
    }
    auto* d_kv = static_cast<std::byte*>(d_qkv) + static_cast<std::size_t>(shape.B * shape.T * shape.H * shape.D) * size_of(shape.dtype);
    attention_block_backward(on(stream, workspace, bytes), {.d_qkv = packed_kv<void>({d_qkv, shape.H * shape.D}, d_kv, shape),
                                                            .d_out = d_out,
                                                            .qkv = packed_kv(packed_qkv(qkv, shape).q, kv, shape),
                                                            .out = out,
                                                            .lse = lse,
                                                            .block = block});
  }
  /// Causal: half of the two products of T x T x D a head; the backward pass has five.
  double flops(bool backward) const {
    const double half = static_cast<double>(shape.B * shape.H) * static_cast<double>(shape.T * shape.T) * static_cast<double>(shape.D);
    return (backward ? 5 : 2) * half;
  }
};

/// The limit: what a product of the same precision reaches, so that the share says how well tensor cores are fed. Returns its name.
std::string add_limit_of_products(Part& part, const Settings& s) {
  const Product product(part, {.M = s.tokens, .N = s.width, .K = s.width, .b_transposed = true, .in = DType::bf16, .out = DType::bf16});
  part.contenders.push_back(product.chosen("bf16 product"));
  return part.contenders.back().name;
}

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
    const auto add_block = [&] {  // beside our own causal pass: there is no other code for blocks
      part.contenders.push_back({.name = named("block of "),
                                 .limit = named(""),
                                 .amount = attention.flops(backward),
                                 .flops = true,
                                 .target = 0.9,
                                 .run = [a = attention, backward](cudaStream_t stream) { a.of_block(stream, backward); }});
    };
    AttentionShape theirs = shape;
    theirs.path = AttentionPath::cudnn;
    if (!kernels::cuda::why_not_cudnn(theirs, pass).empty()) {
      add("", AttentionPath::native, product, 0);
      add_block();
      continue;
    }
    add("cuDNN ", AttentionPath::cudnn, product, 0);
    add("", AttentionPath::native, named("cuDNN "), backward ? 0.6 : 0.7);
    add_block();
    add("chosen ", AttentionPath::fastest, named("cuDNN "), 0.98);
    kernels::cuda::KernelSearch search("");  // as at a run's start
    const Attention chosen = attention.by(AttentionPath::fastest);
    backward ? chosen.backward(nullptr) : chosen.forward(nullptr);
  }
}

}  // namespace

std::vector<Group> attention_groups() {
  struct Shape {
    std::int64_t T, D, H, G;  // 0: of the settings
  };
  std::vector<Group> groups;
  // Those of the settings, by their head's width; then the models' of validation/benchmarks/shapes.py.
  for (const Shape& of : {Shape{0, 64, 0, 0}, Shape{0, 96, 0, 0}, Shape{0, 128, 0, 0}, Shape{1024, 64, 12, 12}, Shape{2048, 128, 16, 16},
                          Shape{8192, 128, 32, 8}}) {
    const std::string name =
        of.T == 0 ? fmt::format("attention-D{}", of.D) : fmt::format("attention-T{}-D{}-H{}-G{}", of.T, of.D, of.H, of.G);
    groups.push_back({name, [of](Part& part, const Settings& s) {
                        const std::int64_t G = of.G > 0 ? of.G : std::max<std::int64_t>(1, s.width / of.D / 4), H = of.H > 0 ? of.H : 4 * G,
                                           T = std::min(of.T > 0 ? of.T : s.context, s.tokens);
                        add_attention_of(part, {.B = s.tokens / T, .T = T, .H = H, .G = G, .D = of.D, .dtype = DType::bf16},
                                         add_limit_of_products(part, s));
                      }});
  }
  return groups;
}

}  // namespace tessera::benchmarks
