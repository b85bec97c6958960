// What a token of generate is made of, beside the copy: products of one row and attention over the cache, each over many operands in turn
// so that none is found in the second-level cache, as in a text (with --mib 256 or more). As there, they run as a CUDA graph.
#include <fmt/format.h>

#include <algorithm>

#include "device_benchmark.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/cuda/streams.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"

namespace tessera::benchmarks {
namespace {

using namespace kernels;

constexpr std::int64_t some_turns = 64;
/// Five times the second-level cache of a Hopper GPU, 50 MB, and more than twice that of a Blackwell GPU: what was read once is gone before
/// its turn comes again.
constexpr std::int64_t beyond_caches = std::int64_t{256} << 20;

/// `turns` calls of `call` on one stream, as a graph.
std::function<void(cudaStream_t)> as_graph(std::int64_t turns, const std::function<void(cudaStream_t, std::int64_t)>& call) {
  const auto streams = std::make_shared<tessera::cuda::Streams>(std::vector{tessera::cuda::StreamKind::usual});
  const auto all = [&] {
    for (std::int64_t turn = 0; turn < turns; ++turn) call((*streams)[0], turn);
  };
  all();  // what libraries do at first use
  TESSERA_CUDA_CHECK(cudaStreamSynchronize((*streams)[0]));
  return [streams, graph = std::shared_ptr<tessera::cuda::Graph>(streams->capture(all))](cudaStream_t stream) { graph->launch(stream); };
}

/// So many operands of `bytes` each that together they are the largest operand of the settings, but no more than caches ask for. The
/// emulator's settings are below that, and its caches no matter.
std::int64_t turns_of(const Settings& s, std::int64_t bytes) {
  const std::int64_t most = s.mib << 20, caches_ask = most < beyond_caches ? 1 : ceil_div(beyond_caches, bytes);
  return std::clamp(most / bytes, std::int64_t{1}, std::max(some_turns, caches_ask));
}

void add_row_product(Part& part, const Settings& s, const std::string& name, std::int64_t N, std::int64_t K, DType out) {
  const std::int64_t weight = N * K * static_cast<std::int64_t>(sizeof(bf16)), turns = turns_of(s, weight);
  const auto* weights = static_cast<const std::byte*>(part.values(turns * N * K, DType::bf16));
  Gemm g{.c = part.values(N, out), .a = part.values(K, DType::bf16), .b = weights, .M = 1, .N = N, .K = K, .b_transposed = true};
  g.in = DType::bf16, g.out = out;
  const std::size_t bytes = gemm_workspace_bytes(g, Backend::cuda);
  void* workspace = part.bytes(bytes);
  part.contenders.push_back({.name = fmt::format("one row, {}", name),
                             .limit = "copy",
                             .amount = static_cast<double>(turns * weight),
                             .target = wanted,
                             .run = as_graph(turns, [=](cudaStream_t stream, std::int64_t turn) {
                               Gemm product = g;
                               product.b = weights + turn * weight;
                               gemm(on(stream, workspace, bytes), product);
                             })});
}

/// A layer's products and the head's; in the emulator, whose settings are small, all sizes shrink alike.
void add_products(Part& part, const Settings& s) {
  struct Model {
    const char* name;
    std::int64_t C, QKV, F, V;
  };
  add_limits(part, s);
  const std::int64_t by = std::max<std::int64_t>(1, 1024 / s.mib);
  const auto size = [&](std::int64_t n) { return std::max<std::int64_t>(64, n / by / 64 * 64); };
  for (const Model& model : {Model{"1.5b", 2048, 3 * 2048, 5632, 50304}, Model{"8b", 4096, 6144, 14336, 128256}}) {
    const std::int64_t C = size(model.C), F = size(model.F);
    const auto named = [&](const char* what) { return fmt::format("{} {}", model.name, what); };
    add_row_product(part, s, named("qkv"), size(model.QKV), C, DType::bf16);
    add_row_product(part, s, named("attention's output"), C, C, DType::bf16);
    add_row_product(part, s, named("gate and up"), 2 * F, C, DType::bf16);
    add_row_product(part, s, named("down"), C, F, DType::bf16);
    add_row_product(part, s, named("head"), size(model.V), C, DType::f32);
  }
}

/// Over caches that are full.
void add_attention(Part& part, const Settings& s) {
  add_limits(part, s);
  for (AttentionShape shape : {AttentionShape{.H = 12, .G = 2, .D = 128}, {.H = 14, .G = 2, .D = 64}, {.H = 32, .G = 8, .D = 128}}) {
    shape.B = 1, shape.dtype = DType::bf16;
    for (const std::int64_t length : {s.context / 8, 2 * s.context}) {
      const std::int64_t cache = length * shape.G * shape.D * static_cast<std::int64_t>(sizeof(bf16)), turns = turns_of(s, 2 * cache);
      const auto last = static_cast<std::int32_t>(length - 1);
      AttentionDecode a{.out = part.values(shape.H * shape.D, DType::bf16),
                        .qkv = packed_qkv(part.values(shape.qkv_width(), DType::bf16), shape),
                        .position = static_cast<const std::int32_t*>(part.copy_of(&last, sizeof last)),
                        .capacity = length,
                        .shape = shape};
      auto* keys = static_cast<std::byte*>(part.values(turns * length * shape.G * shape.D, DType::bf16));
      auto* values = static_cast<std::byte*>(part.values(turns * length * shape.G * shape.D, DType::bf16));
      const std::size_t bytes = attention_decode_workspace_bytes(a, Backend::cuda);
      void* workspace = part.bytes(bytes);
      part.contenders.push_back({.name = fmt::format("attention decode T={} D={} H={} G={}", length, shape.D, shape.H, shape.G),
                                 .limit = "copy",
                                 .amount = static_cast<double>(turns * 2 * cache),
                                 .run = as_graph(turns, [=, row = shape.G * shape.D](cudaStream_t stream, std::int64_t turn) {
                                   AttentionDecode of_turn = a;
                                   of_turn.cached_k = {keys + turn * cache, row}, of_turn.cached_v = {values + turn * cache, row};
                                   attention_decode(on(stream, workspace, bytes), of_turn);
                                 })});
    }
  }
}

/// Kernels that have next to nothing to do: the gap between two kernels of a graph.
void add_gaps(Part& part, const Settings& s) {
  const std::int64_t C = s.width;
  void *x = part.values(C, DType::bf16), *out = part.values(C, DType::bf16), *weight = part.values(C, DType::bf16);
  part.contenders.push_back({.name = fmt::format("{} norms of one row, one after the other", some_turns),
                             .amount = static_cast<double>(some_turns * 4 * C),
                             .run = as_graph(some_turns, [=](cudaStream_t stream, std::int64_t) {
                               rmsnorm_forward(on(stream), {.out = out, .x = x, .weight = weight, .rows = 1, .C = C, .dtype = DType::bf16});
                             })});
}

}  // namespace

std::vector<Group> decode_groups() {
  return {{"decode-products", add_products}, {"decode-attention", add_attention}, {"decode-gaps", add_gaps}};
}

}  // namespace tessera::benchmarks
