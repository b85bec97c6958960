// Attention forward and backward against the measured GEMM rate of the same type: of whole sequences, of the two blocks of ring
// attention, and of windows beside all keys. FLOPs are those of the causal half, and blocks have as many: 2 T^2 D a head forward, 2.5 times
// that backward.
#include "kernels/attention/attention.hpp"

#include "validation/benchmarks/limits.hpp"

namespace tessera::benchmarks {
namespace {

void report(benchmark::State& state, const kernels::AttentionShape& s, bool backward, double best) {
  static const double limits[] = {gemm_rate(DType::f32), gemm_rate(DType::bf16)};
  double flops = 2. * static_cast<double>(s.T * s.T * s.D) * static_cast<double>(s.B * s.H) * (backward ? 2.5 : 1);
  state.counters["GFLOP/s"] = flops / best * 1e-9;
  state.counters["of_gemm"] = flops / best / limits[s.dtype == DType::bf16];
}

void run_attention(benchmark::State& state, const kernels::AttentionShape& s, bool backward) {
  std::int64_t rows = s.B * s.T, width = (s.H + 2 * s.G) * s.D;
  Data qkv(rows * width, s.dtype), out(rows * s.H * s.D, s.dtype), d_out(rows * s.H * s.D, s.dtype), d_qkv(rows * width, s.dtype);
  Data lse(s.B * s.H * s.T, DType::f32);
  Data workspace(std::max(kernels::attention_forward_workspace_bytes(s), kernels::attention_backward_workspace_bytes(s)));
  auto forward = [&] {
    kernels::attention_forward(workspace.context(),
                               {.out = out.data(), .lse = lse.as<float>(), .qkv = kernels::packed_qkv(qkv.data(), s), .shape = s});
  };
  forward();
  double best = 1e30;
  for (auto _ : state) {
    double start = now_seconds();
    if (backward)
      kernels::attention_backward(workspace.context(), {.d_qkv = kernels::packed_qkv(d_qkv.data(), s),
                                                        .d_out = d_out.data(),
                                                        .qkv = kernels::packed_qkv(qkv.data(), s),
                                                        .out = out.data(),
                                                        .lse = lse.as<float>(),
                                                        .shape = s});
    else
      forward();
    best = std::min(best, now_seconds() - start);
  }
  report(state, s, backward, best);
}

/// A window beside all keys, in turns: what its time is of that of all, over its share of the pairs of query and key. 1 is its work alone.
void run_window(benchmark::State& state, kernels::AttentionShape s, std::int64_t window, bool backward) {
  const std::int64_t rows = s.B * s.T, width = (s.H + 2 * s.G) * s.D;
  Data qkv(rows * width, s.dtype), out(rows * s.H * s.D, s.dtype), d_out(rows * s.H * s.D, s.dtype), d_qkv(rows * width, s.dtype);
  Data lse(s.B * s.H * s.T, DType::f32);
  Data workspace(std::max(kernels::attention_forward_workspace_bytes(s), kernels::attention_backward_workspace_bytes(s)));
  const auto seconds = [&](std::int64_t seen, bool gradients) {
    s.window = seen;
    const double start = now_seconds();
    if (gradients)
      kernels::attention_backward(workspace.context(), {.d_qkv = kernels::packed_qkv(d_qkv.data(), s),
                                                        .d_out = d_out.data(),
                                                        .qkv = kernels::packed_qkv(qkv.data(), s),
                                                        .out = out.data(),
                                                        .lse = lse.as<float>(),
                                                        .shape = s});
    else
      kernels::attention_forward(workspace.context(),
                                 {.out = out.data(), .lse = lse.as<float>(), .qkv = kernels::packed_qkv(qkv.data(), s), .shape = s});
    return now_seconds() - start;
  };
  double all = 1e30, some = 1e30;
  for (auto _ : state)
    for (const std::int64_t seen : {std::int64_t{0}, window}) {
      seconds(seen, false);  // the backward pass reads what this leaves
      double& best = seen == 0 ? all : some;
      best = std::min(best, seconds(seen, backward));
    }
  const auto T = static_cast<double>(s.T), W = static_cast<double>(window);
  state.counters["of_all_keys"] = some / all;
  state.counters["over_its_share"] = some / all / ((W * T - W * (W - 1) / 2) / (T * (T + 1) / 2));
}

void register_windows() {
  const kernels::AttentionShape shape{.B = 1, .T = 16384, .H = 2, .G = 1, .D = 64};
  for (DType t : {DType::f32, DType::bf16})
    for (const std::int64_t window : {1024, 4096})
      for (const bool backward : {false, true}) {
        kernels::AttentionShape s = shape;
        s.dtype = t;
        const std::string name = fmt::format("attention_window/T{}_W{}_H{}_G{}_D{}/{}/{}", s.T, window, s.H, s.G, s.D, name_of(t),
                                             backward ? "backward" : "forward");
        benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { run_window(state, s, window, backward); })->UseRealTime();
      }
}

/// With the keys of a rank of lower number, half of which all queries see, or of higher, all of which half of the queries see.
void run_block(benchmark::State& state, const kernels::AttentionShape& s, bool lower, bool backward) {
  const kernels::AttentionRows all{0, s.T}, first_half{0, s.T / 2}, second_half{s.T / 2, s.T / 2};
  const kernels::AttentionBlock block{s, lower ? all : second_half, lower ? first_half : all};
  const std::int64_t rows = s.B * s.T, queries = s.H * s.D, keys = 2 * s.G * s.D;
  Data qkv(rows * (queries + keys), s.dtype), kv(rows * keys, s.dtype), out(rows * queries, s.dtype), d_out(rows * queries, s.dtype);
  Data d_q(rows * queries, s.dtype), d_kv(rows * keys, s.dtype), lse(s.B * s.H * s.T, DType::f32);
  Data workspace(
      std::max(kernels::attention_block_forward_workspace_bytes(block), kernels::attention_block_backward_workspace_bytes(block)));
  const kernels::Qkv block_rows = kernels::packed_kv<const void>(kernels::packed_qkv(qkv.data(), s).q, kv.data(), s);
  auto run = [&](bool gradients) {
    if (gradients)
      kernels::attention_block_backward(workspace.context(), {.d_qkv = kernels::packed_kv<void>({d_q.data(), queries}, d_kv.data(), s),
                                                              .d_out = d_out.data(),
                                                              .qkv = block_rows,
                                                              .out = out.data(),
                                                              .lse = lse.as<float>(),
                                                              .block = block});
    else
      kernels::attention_block_forward(workspace.context(), {.out = out.data(), .lse = lse.as<float>(), .qkv = block_rows, .block = block});
  };
  run(false);
  double best = 1e30;
  for (auto _ : state) {
    double start = now_seconds();
    run(backward);
    best = std::min(best, now_seconds() - start);
  }
  report(state, s, backward, best);
}

void register_blocks() {
  using Shape = kernels::AttentionShape;
  for (Shape s : {Shape{.B = 1, .T = 1024, .H = 12, .G = 12, .D = 64}, Shape{.B = 1, .T = 4096, .H = 4, .G = 1, .D = 64}})
    for (DType t : {DType::f32, DType::bf16})
      for (bool lower : {true, false})
        for (bool backward : {false, true}) {
          s.dtype = t;
          std::string name = fmt::format("attention_block/{}/B{}_T{}_H{}_G{}_D{}/{}/{}", lower ? "lower" : "higher", s.B, s.T, s.H, s.G,
                                         s.D, name_of(t), backward ? "backward" : "forward");
          benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { run_block(state, s, lower, backward); })->UseRealTime();
        }
}

void register_all() {
  using Shape = kernels::AttentionShape;
  for (Shape s : {Shape{.B = 1, .T = 1024, .H = 12, .G = 12, .D = 64}, Shape{.B = 1, .T = 1024, .H = 8, .G = 2, .D = 128},
                  Shape{.B = 4, .T = 256, .H = 12, .G = 12, .D = 64}, Shape{.B = 1, .T = 4096, .H = 4, .G = 1, .D = 64},
                  Shape{.B = 1, .T = 1000, .H = 12, .G = 12, .D = 48}})
    for (DType t : {DType::f32, DType::bf16})
      for (bool backward : {false, true}) {
        s.dtype = t;
        std::string name =
            fmt::format("attention/B{}_T{}_H{}_G{}_D{}/{}/{}", s.B, s.T, s.H, s.G, s.D, name_of(t), backward ? "backward" : "forward");
        benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { run_attention(state, s, backward); })->UseRealTime();
      }
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) {
  tessera::benchmarks::register_all();
  tessera::benchmarks::register_blocks();
  tessera::benchmarks::register_windows();
  return tessera::benchmarks::run(argc, argv);
}
