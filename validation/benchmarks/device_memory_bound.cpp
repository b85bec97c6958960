// Kernels that memory bounds, with the bytes that each must move.
#include <fmt/format.h>

#include <random>
#include <set>

#include "device_benchmark.hpp"
#include "kernels/adamw/adamw.hpp"
#include "kernels/attention_sinks/attention_sinks.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/embedding/embedding.hpp"
#include "kernels/expert_blocks/expert_blocks.hpp"
#include "kernels/head_blocks/head_blocks.hpp"
#include "kernels/key_parts/key_parts.hpp"
#include "kernels/qk_norm_rope/qk_norm_rope.hpp"
#include "kernels/ring_attention/ring_attention.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"
#include "kernels/rope/rope.hpp"
#include "kernels/swiglu/swiglu.hpp"
#include "kernels/wide_qk_norm/wide_qk_norm.hpp"

namespace tessera::benchmarks {
namespace {

using namespace kernels;

constexpr std::int64_t head_dim = 128;

double count(std::int64_t n) { return static_cast<double>(n); }
double bytes_of(std::int64_t n, DType dtype) { return count(n) * static_cast<double>(size_of(dtype)); }
std::string named(const char* name, DType dtype) { return fmt::format("{} {}", name, name_of(dtype)); }

}  // namespace

/// Our own kernel and CUDA's copy: the faster of them is the limit, so that no slowness of ours lowers it.
void add_limits(Part& part, const Settings& s) {
  const std::int64_t n = s.mib << 18;
  void *from = part.values(n, DType::f32), *to = part.values(n, DType::f32);
  part.contenders.push_back({.name = "our copy", .stands_for = "copy", .amount = 8 * count(n), .run = [=](cudaStream_t stream) {
                               cast(on(stream), to, DType::f32, from, DType::f32, n);
                             }});
  part.contenders.push_back({.name = "cudaMemcpy", .stands_for = "copy", .amount = 8 * count(n), .run = [=](cudaStream_t stream) {
                               TESSERA_CUDA_CHECK(
                                   cudaMemcpyAsync(to, from, static_cast<std::size_t>(4 * n), cudaMemcpyDeviceToDevice, stream));
                             }});
}

namespace {

void add_rmsnorm(Part& part, const Settings& s, DType dtype) {
  const std::int64_t C = s.width, rows = std::max<std::int64_t>(1, (s.mib << 20) / (C * static_cast<std::int64_t>(size_of(dtype)))),
                     n = rows * C;
  void *x = part.values(n, dtype), *out = part.values(n, dtype), *residual = part.values(n, dtype), *d_x = part.values(n, dtype);
  void* weight = part.values(C, dtype);
  auto* rstd = static_cast<float*>(part.values(rows, DType::f32));
  auto* d_weight = static_cast<float*>(part.values(C, DType::f32));
  part.contenders.push_back({.name = named("rmsnorm forward", dtype),
                             .limit = "copy",
                             .amount = 2 * bytes_of(n, dtype) + 4 * count(rows),
                             .target = wanted,
                             .run = [=](cudaStream_t stream) {
                               rmsnorm_forward(on(stream),
                                               {.out = out, .rstd = rstd, .x = x, .weight = weight, .rows = rows, .C = C, .dtype = dtype});
                             }});
  const RmsnormBackward backward{.d_x = d_x,
                                 .d_weight = d_weight,
                                 .d_out = out,
                                 .d_residual = residual,
                                 .x = x,
                                 .weight = weight,
                                 .rstd = rstd,
                                 .rows = rows,
                                 .C = C,
                                 .dtype = dtype};
  const std::size_t workspace_bytes = rmsnorm_backward_workspace_bytes(backward, Backend::cuda);
  void* workspace = part.bytes(workspace_bytes);
  part.contenders.push_back({.name = named("rmsnorm backward", dtype),
                             .limit = "copy",
                             .amount = 4 * bytes_of(n, dtype) + 4 * count(rows),
                             .target = wanted,
                             .run = [=](cudaStream_t stream) { rmsnorm_backward(on(stream, workspace, workspace_bytes), backward); }});
}

void add_swiglu(Part& part, const Settings& s, DType dtype) {
  const std::int64_t F = s.width, M = std::max<std::int64_t>(1, (s.mib << 20) / (2 * F * static_cast<std::int64_t>(size_of(dtype))));
  void *gate_up = part.values(2 * M * F, dtype), *d_gate_up = part.values(2 * M * F, dtype), *out = part.values(M * F, dtype);
  for (const GateActivation activation : {GateActivation::silu, GateActivation::gelu_tanh}) {
    const std::string name = activation == GateActivation::silu ? "swiglu" : "gelu_tanh";
    const SwigluForward forward{.out = out, .gate_up = gate_up, .M = M, .F = F, .dtype = dtype, .activation = activation};
    const SwigluBackward backward{
        .d_gate_up = d_gate_up, .d_out = out, .gate_up = gate_up, .M = M, .F = F, .dtype = dtype, .activation = activation};
    part.contenders.push_back({.name = named((name + " forward").c_str(), dtype),
                               .limit = "copy",
                               .amount = 3 * bytes_of(M * F, dtype),
                               .target = wanted,
                               .run = [=](cudaStream_t stream) { swiglu_forward(on(stream), forward); }});
    part.contenders.push_back({.name = named((name + " backward").c_str(), dtype),
                               .limit = "copy",
                               .amount = 5 * bytes_of(M * F, dtype),
                               .target = wanted,
                               .run = [=](cudaStream_t stream) { swiglu_backward(on(stream), backward); }});
  }
}

/// A query head for each key head, of eight ranks.
void add_head_blocks(Part& part, const Settings& s, DType dtype) {
  constexpr std::int64_t H = 8, W = 3 * H * head_dim;
  const std::int64_t T = std::max<std::int64_t>(1, (s.mib << 20) / (W * static_cast<std::int64_t>(size_of(dtype))));
  const HeadBlocks call{.to = part.values(T * W, dtype),
                        .from = part.values(T * W, dtype),
                        .B = 1,
                        .T = T,
                        .N = H,
                        .H = H,
                        .G = H,
                        .D = head_dim,
                        .dtype = dtype};
  for (const bool back : {false, true})
    part.contenders.push_back(
        {.name = named(back ? "head_blocks_to_rows" : "rows_to_head_blocks", dtype),
         .limit = "copy",
         .amount = 2 * bytes_of(T * W, dtype),
         .target = wanted,
         .run = [=](cudaStream_t stream) { back ? head_blocks_to_rows(on(stream), call) : rows_to_head_blocks(on(stream), call); }});
}

/// Eight query heads, on a key head that two of two ranks have: all parts that are gathered are used.
void add_key_parts(Part& part, const Settings& s, DType dtype) {
  constexpr std::int64_t H = 8, N = 2, keys = 2 * head_dim, W = H * head_dim + keys;
  const std::int64_t M = std::max<std::int64_t>(1, (s.mib << 20) / (W * static_cast<std::int64_t>(size_of(dtype))));
  const KeyParts shape{.M = M, .H = H, .D = head_dim, .N = N, .sharing = N, .dtype = dtype};
  void *rows = part.values(M * W, dtype), *made = part.values(M * (W - keys / N), dtype), *parts = part.values(M * keys, dtype);
  part.contenders.push_back(
      {.name = named("join_key_parts", dtype),
       .limit = "copy",
       .amount = 2 * bytes_of(M * W, dtype),
       .target = wanted,
       .run = [=](cudaStream_t stream) { join_key_parts(on(stream), {.rows = rows, .made = made, .parts = parts, .shape = shape}); }});
  part.contenders.push_back(
      {.name = named("spread_key_gradients", dtype),
       .limit = "copy",
       .amount = 2 * bytes_of(M * keys, dtype),
       .target = wanted,
       .run = [=](cudaStream_t stream) { spread_key_gradients(on(stream), {.parts = parts, .d_rows = rows, .shape = shape}); }});
}

/// Eight query heads on two key heads, of which all rows take part.
void add_ring_attention(Part& part, const Settings& s, DType dtype) {
  constexpr std::int64_t H = 8, G = 2, queries = H * head_dim, keys = 2 * G * head_dim;
  const std::int64_t T = std::max<std::int64_t>(1, (s.mib << 18) / (queries + keys));
  const AttentionShape shape{.B = 1, .T = T, .H = H, .G = G, .D = head_dim, .dtype = dtype};
  const AttentionRows all{.count = T};
  const auto floats = [&](std::int64_t n) { return static_cast<float*>(part.values(n, DType::f32)); };
  float *d_q = floats(T * queries), *d_kv = floats(T * keys), *lse = floats(T * H), *block_lse = floats(T * H);
  void *block = part.values(T * queries, dtype), *d_qkv = part.values(T * (queries + keys), dtype);
  const auto add = [&](const char* name, double amount, std::function<void(cudaStream_t)> run) {
    part.contenders.push_back({.name = named(name, dtype), .limit = "copy", .amount = amount, .target = wanted, .run = std::move(run)});
  };
  const double added = 8 * count(T * queries) + bytes_of(T * queries, dtype);
  add("merge_block", added + 12 * count(T * H), [=](cudaStream_t stream) {
    merge_block(on(stream), {.sum = d_q, .lse = lse, .block_out = block, .block_lse = block_lse, .queries = all, .shape = shape});
  });
  add("add_block_gradient", added, [=](cudaStream_t stream) {
    AddBlockGradient call{.sum = d_q, .block = block, .B = 1, .T = T, .W = queries, .rows = all};
    call.dtype = dtype;
    add_block_gradient(on(stream), call);
  });
  const double converted = 4 * count(T * (queries + keys)) + bytes_of(T * (queries + keys), dtype);
  add("begin_gradients", converted, [=](cudaStream_t stream) {
    begin_gradients(on(stream), {.d_q = d_q, .d_kv = d_kv, .d_qkv = packed_qkv(d_qkv, shape), .shape = shape});
  });
  add("end_gradients", converted, [=](cudaStream_t stream) {
    end_gradients(on(stream), {.d_qkv = packed_qkv(d_qkv, shape), .d_q = d_q, .d_kv = d_kv, .shape = shape});
  });
}

/// Heads of 64 features.
void add_attention_sinks(Part& part, const Settings& s, DType dtype) {
  constexpr std::int64_t H = 64, D = 64;
  const std::int64_t T = std::max<std::int64_t>(1, (s.mib << 20) / (H * D * static_cast<std::int64_t>(size_of(dtype))));
  void *out = part.values(T * H * D, dtype), *d_out = part.values(T * H * D, dtype), *sinks = part.values(H, dtype);
  auto *lse = static_cast<float*>(part.values(T * H, DType::f32)), *d_sinks = static_cast<float*>(part.values(H, DType::f32));
  const AttentionSinksForward forward{.out = out, .lse = lse, .sinks = sinks, .B = 1, .T = T, .H = H, .D = D, .dtype = dtype};
  part.contenders.push_back({.name = named("attention_sinks forward", dtype),
                             .limit = "copy",
                             .amount = 2 * bytes_of(T * H * D, dtype) + 8 * count(T * H),
                             .target = wanted,
                             .run = [=](cudaStream_t stream) { attention_sinks_forward(on(stream), forward); }});
  const AttentionSinksBackward backward{
      .d_sinks = d_sinks, .d_out = d_out, .out = out, .lse = lse, .sinks = sinks, .B = 1, .T = T, .H = H, .D = D, .dtype = dtype};
  const std::size_t workspace_bytes = attention_sinks_backward_workspace_bytes(backward, Backend::cuda);
  void* workspace = part.bytes(workspace_bytes);
  part.contenders.push_back(
      {.name = named("attention_sinks backward", dtype),
       .limit = "copy",
       .amount = 2 * bytes_of(T * H * D, dtype) + 4 * count(T * H),
       .target = wanted,
       .run = [=](cudaStream_t stream) { attention_sinks_backward(on(stream, workspace, workspace_bytes), backward); }});
}

/// Rows of eight ranks for eight experts, which each have an eighth of them; as many as copies have fp32 values.
void add_expert_blocks(Part& part, const Settings& s) {
  constexpr std::int64_t N = 8, E = 8;
  const ExpertBlocks blocks{.N = N, .E = E, .rows = (s.mib << 18) / N};
  std::vector<std::uint32_t> labels(static_cast<std::size_t>(N * blocks.labels()), 0);
  for (std::int64_t n = 0; n < N; ++n)
    for (std::int64_t e = 0; e < E; ++e)
      labels[static_cast<std::size_t>(n * blocks.labels() + e)] = static_cast<std::uint32_t>(blocks.rows / E);
  const auto numbers = [&] { return static_cast<std::int32_t*>(part.bytes(static_cast<std::size_t>(4 * N * blocks.rows))); };
  const PlanArrivals call{.offsets = static_cast<std::int32_t*>(part.bytes(4 * (E + 1))),
                          .order = numbers(),
                          .places = numbers(),
                          .weights = reinterpret_cast<float*>(numbers()),
                          .labels = static_cast<std::uint32_t*>(part.copy_of(labels.data(), 4 * labels.size())),
                          .blocks = blocks};
  part.contenders.push_back(
      {.name = "plan_arrivals", .limit = "copy", .amount = 16 * count(N * blocks.rows), .run = [=](cudaStream_t stream) {
         plan_arrivals(on(stream), call);
       }});
}

void add_adamw(Part& part, const Settings& s) {
  const std::int64_t n = s.mib << 18;
  const UpdateScalars scalars{.learning_rate = 1e-6f, .bias_correction1 = 0.5f, .bias_correction2 = 0.5f};
  auto* on_device = static_cast<UpdateScalars*>(part.copy_of(&scalars, sizeof scalars));
  auto* master = static_cast<float*>(part.values(n, DType::f32));
  auto* m = static_cast<float*>(part.values(n, DType::f32));
  // Second moments are squares: zero will do, and no value of normal numbers that is negative.
  auto* v = static_cast<float*>(part.bytes(static_cast<std::size_t>(4 * n)));
  void *grad = part.values(n, DType::f32), *fixed = part.bytes(static_cast<std::size_t>(8 * n)), *copy = part.values(n, DType::bf16),
       *halves = part.values(n, DType::bf16);
  struct Kind {
    const char* name;
    void* param;
    const void* grad;
    DType dtype;
    double bytes;  // read and written for one parameter
  };
  for (const Kind& kind : {Kind{"adamw fp32", nullptr, grad, DType::f32, 16 + 12}, Kind{"adamw bf16", copy, grad, DType::f32, 16 + 14},
                           Kind{"adamw bf16, bf16 gradient", copy, halves, DType::bf16, 14 + 14},
                           Kind{"adamw bf16, fixed-point gradient", copy, fixed, DType::i64, 20 + 14}}) {
    part.contenders.push_back(
        {.name = kind.name, .limit = "copy", .amount = kind.bytes * count(n), .target = wanted, .run = [=](cudaStream_t stream) {
           adamw(on(stream), {.master = master,
                              .state = {m, v},
                              .param = kind.param,
                              .grad = kind.grad,
                              .grad_dtype = kind.dtype,
                              .n = n,
                              .weight_decay = 0.1f,
                              .scalars = on_device});
         }});
  }
}

void add_cross_entropy(Part& part, const Settings& s, DType dtype) {
  const std::int64_t V = std::min<std::int64_t>(50304, s.mib << 14), rows = std::max<std::int64_t>(1, (s.mib << 18) / V);
  auto* logits = static_cast<float*>(part.values(rows * V, DType::f32));
  void* d_logits = part.values(rows * V, dtype);
  std::vector<std::int32_t> targets(static_cast<std::size_t>(rows));
  for (std::int64_t r = 0; r < rows; ++r) targets[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(r * 7919 % V);
  auto* on_device = static_cast<std::int32_t*>(part.copy_of(targets.data(), targets.size() * 4));
  auto* losses = static_cast<float*>(part.values(rows, DType::f32));
  const std::vector<float> ones(static_cast<std::size_t>(rows), 1.0f);
  auto* weights = static_cast<float*>(part.copy_of(ones.data(), ones.size() * 4));
  const float grad_scale = 1e-4f;
  auto* scale = static_cast<float*>(part.copy_of(&grad_scale, sizeof grad_scale));
  part.contenders.push_back({.name = named("cross-entropy rows", dtype),
                             .limit = "copy",
                             .amount = 4 * count(rows * V) + bytes_of(rows * V, dtype),
                             .target = wanted,
                             .run = [=](cudaStream_t stream) {
                               softmax_loss_rows(on(stream), {.losses = losses,
                                                              .logits = logits,
                                                              .d_logits = d_logits,
                                                              .targets = on_device,
                                                              .weights = weights,
                                                              .grad_scale = scale,
                                                              .rows = rows,
                                                              .V = V,
                                                              .dtype = dtype});
                             }});
}

void add_rope(Part& part, const Settings& s, DType dtype) {
  const std::int64_t heads = std::max<std::int64_t>(1, s.width / head_dim), stride = heads * head_dim, T = s.context,
                     M = std::max<std::int64_t>(1, (s.mib << 20) / (stride * static_cast<std::int64_t>(size_of(dtype))));
  std::vector<float> table(static_cast<std::size_t>(T * head_dim));
  rope_table(table.data(), 0, T, head_dim, 500000, {});
  auto* on_device = static_cast<float*>(part.copy_of(table.data(), table.size() * 4));
  void* x = part.values(M * stride, dtype);
  part.contenders.push_back(
      {.name = named("rope", dtype), .limit = "copy", .amount = 2 * bytes_of(M * stride, dtype), .run = [=](cudaStream_t stream) {
         rope(on(stream), {.x = x, .table = on_device, .M = M, .T = T, .heads = heads, .D = head_dim, .stride = stride, .dtype = dtype});
       }});
}

/// Four query heads on each key head. Backward leaves the value heads alone.
void add_qk_norm_rope(Part& part, const Settings& s, DType dtype) {
  const std::int64_t H = std::max<std::int64_t>(1, s.width / head_dim), G = std::max<std::int64_t>(1, H / 4), D = head_dim, T = s.context,
                     width = (H + 2 * G) * D,
                     M = std::max<std::int64_t>(1, (s.mib << 20) / (width * static_cast<std::int64_t>(size_of(dtype)))),
                     turned = M * (H + G);
  std::vector<float> table(static_cast<std::size_t>(T * D));
  rope_table(table.data(), 0, T, D, 500000, {});
  auto* on_device = static_cast<float*>(part.copy_of(table.data(), table.size() * 4));
  void *x = part.values(M * width, dtype), *out = part.values(M * width, dtype), *weight = part.values(D, dtype);
  auto* rstd = static_cast<float*>(part.values(turned, DType::f32));
  auto* d_weight = static_cast<float*>(part.values(D, DType::f32));
  const QkNormRopeForward forward{.out = out,
                                  .rstd = rstd,
                                  .x = x,
                                  .q_norm = weight,
                                  .k_norm = weight,
                                  .table = on_device,
                                  .M = M,
                                  .T = T,
                                  .H = H,
                                  .G = G,
                                  .D = D,
                                  .dtype = dtype};
  part.contenders.push_back({.name = named("qk_norm_rope forward", dtype),
                             .limit = "copy",
                             .amount = 2 * bytes_of(M * width, dtype) + 4 * count(turned),
                             .run = [=](cudaStream_t stream) { qk_norm_rope_forward(on(stream), forward); }});
  const QkNormRopeBackward backward{.d_qkv = out,
                                    .d_q_norm = d_weight,
                                    .d_k_norm = d_weight,
                                    .x = x,
                                    .q_norm = weight,
                                    .k_norm = weight,
                                    .rstd = rstd,
                                    .table = on_device,
                                    .M = M,
                                    .T = T,
                                    .H = H,
                                    .G = G,
                                    .D = D,
                                    .dtype = dtype};
  const std::size_t workspace_bytes = qk_norm_rope_backward_workspace_bytes(backward, Backend::cuda);
  void* workspace = part.bytes(workspace_bytes);
  part.contenders.push_back({.name = named("qk_norm_rope backward", dtype),
                             .limit = "copy",
                             .amount = 3 * bytes_of(turned * D, dtype) + 4 * count(turned),
                             .run = [=](cudaStream_t stream) { qk_norm_rope_backward(on(stream, workspace, workspace_bytes), backward); }});
}

void add_wide_qk_norm(Part& part, const Settings& s, DType dtype) {
  const std::int64_t Q = s.width, K = std::max<std::int64_t>(1, Q / 4), width = Q + 2 * K,
                     M = std::max<std::int64_t>(1, (s.mib << 20) / (width * static_cast<std::int64_t>(size_of(dtype))));
  const WideQkShape shape{.M = M, .Q = Q, .K = K, .stride = width, .dtype = dtype};
  void *x = part.values(M * width, dtype), *out = part.values(M * width, dtype), *weight = part.values(Q, dtype);
  auto *sums = static_cast<float*>(part.values(2 * M, DType::f32)), *d_weight = static_cast<float*>(part.values(Q, DType::f32));
  part.contenders.push_back({.name = named("wide_qk_norm forward", dtype),
                             .limit = "copy",
                             .amount = 2 * bytes_of(M * width, dtype) + 8 * count(M),
                             .run = [=](cudaStream_t stream) {
                               wide_qk_norm(on(stream), {out, x, sums, weight, weight, shape});
                             }});
  const WideQkNormBackward backward{out, d_weight, d_weight, x, sums, sums, weight, weight, shape};
  const std::size_t bytes = wide_qk_norm_backward_workspace_bytes(backward, Backend::cuda);
  part.contenders.push_back(
      {.name = named("wide_qk_norm backward", dtype),
       .limit = "copy",
       .amount = 3 * bytes_of(M * (Q + K), dtype) + 16 * count(M),
       .run = [=, workspace = part.bytes(bytes)](cudaStream_t stream) { wide_qk_norm_backward(on(stream, workspace, bytes), backward); }});
}

void add_embedding(Part& part, const Settings& s, DType dtype) {
  const std::int64_t C = s.width, V = std::min<std::int64_t>(50304, s.mib << 12),
                     M = std::max<std::int64_t>(1, (s.mib << 20) / (C * static_cast<std::int64_t>(size_of(dtype))));
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(M));
  std::mt19937 random(1);
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(V));
  const auto distinct = static_cast<std::int64_t>(std::set<std::int32_t>(tokens.begin(), tokens.end()).size());
  auto* on_device = static_cast<std::int32_t*>(part.copy_of(tokens.data(), tokens.size() * 4));
  void *table = part.values(V * C, dtype), *out = part.values(M * C, dtype);
  part.contenders.push_back({.name = named("embedding forward", dtype),
                             .limit = "copy",
                             .amount = 4 * count(M) + bytes_of(distinct * C, dtype) + bytes_of(M * C, dtype),
                             .run = [=](cudaStream_t stream) {
                               embedding_forward(on(stream),
                                                 {.out = out, .table = table, .tokens = on_device, .M = M, .C = C, .dtype = dtype});
                             }});
  const EmbeddingBackward backward{.d_table = static_cast<float*>(part.values(V * C, DType::f32)),
                                   .d_out = out,
                                   .tokens = on_device,
                                   .M = M,
                                   .C = C,
                                   .V = V,
                                   .dtype = dtype};
  const std::size_t workspace_bytes = embedding_backward_workspace_bytes(backward, Backend::cuda);
  void* workspace = part.bytes(workspace_bytes);
  part.contenders.push_back({.name = named("embedding backward", dtype),
                             .limit = "copy",
                             .amount = 4 * count(M) + bytes_of(M * C, dtype) + 8 * count(distinct * C),
                             .run = [=](cudaStream_t stream) { embedding_backward(on(stream, workspace, workspace_bytes), backward); }});
}

}  // namespace

std::vector<Group> memory_bound_groups() {
  const auto both = [](const char* name, void (*add)(Part&, const Settings&, DType)) {
    return Group{name, [add](Part& part, const Settings& s) {
                   add_limits(part, s);
                   for (DType dtype : {DType::bf16, DType::f32}) add(part, s, dtype);
                 }};
  };
  return {{"limits", add_limits},
          both("rmsnorm", add_rmsnorm),
          both("swiglu", add_swiglu),
          both("head_blocks", add_head_blocks),
          both("key_parts", add_key_parts),
          both("ring_attention", add_ring_attention),
          both("attention_sinks", add_attention_sinks),
          both("cross-entropy", add_cross_entropy),
          both("rope", add_rope),
          both("qk_norm_rope", add_qk_norm_rope),
          both("wide_qk_norm", add_wide_qk_norm),
          both("embedding", add_embedding),
          {"expert_blocks",
           [](Part& part, const Settings& s) {
             add_limits(part, s);
             add_expert_blocks(part, s);
           }},
          {"adamw", [](Part& part, const Settings& s) {
             add_limits(part, s);
             add_adamw(part, s);
           }}};
}

}  // namespace tessera::benchmarks
