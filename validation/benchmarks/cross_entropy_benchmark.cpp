// The head: loss and gradients against the GEMM rate (its three products), and the row pass alone against stream bandwidth.
#include "kernels/cross_entropy/cross_entropy.hpp"

#include "validation/benchmarks/limits.hpp"

namespace tessera::benchmarks {
namespace {

void run_head(benchmark::State& state, std::int64_t chunk, DType t) {
  constexpr std::int64_t M = 1024, C = 768, V = 50257;
  Data x(M * C, t), weight(V * C, t), d_x(M * C, t), d_weight(V * C, DType::f32), losses(M, DType::f32), targets(M * 4, DType::f32);
  std::int32_t* target = targets.as<std::int32_t>();
  for (std::int64_t i = 0; i < M; ++i) target[i] = static_cast<std::int32_t>(i * 31 % V);
  double sum = 0;
  kernels::LinearCrossEntropy l{.losses = losses.as<float>(),
                                .loss_sum = &sum,
                                .d_x = d_x.data(),
                                .d_weight = d_weight.as<float>(),
                                .x = x.data(),
                                .weight = weight.data(),
                                .targets = target,
                                .grad_scale = 1e-3f,
                                .M = M,
                                .C = C,
                                .V = V,
                                .chunk = chunk,
                                .dtype = t};
  Data workspace(kernels::linear_cross_entropy_workspace_bytes(l));
  double best = 1e30;
  for (auto _ : state) {
    double start = now_seconds();
    kernels::linear_cross_entropy(workspace.context(), l);
    best = std::min(best, now_seconds() - start);
  }
  static const double limits[] = {gemm_rate(DType::f32), gemm_rate(DType::bf16)};
  double rate = 6. * M * C * V / best;
  state.counters["GFLOP/s"] = rate * 1e-9;
  state.counters["of_gemm"] = rate / limits[t == DType::bf16];
}

void run_rows(benchmark::State& state, DType t) {
  constexpr std::int64_t m = 512, V = 50257;
  Data logits(m * V, DType::f32), d_logits(m * V, t), losses(m, DType::f32), targets(m * 4, DType::f32);
  std::int32_t* target = targets.as<std::int32_t>();
  for (std::int64_t i = 0; i < m; ++i) target[i] = static_cast<std::int32_t>(i * 31 % V);
  void* gradient = t == DType::f32 ? logits.data() : d_logits.data();
  double best = 1e30;
  for (auto _ : state) {
    double start = now_seconds();
    kernels::softmax_loss_rows({}, {.losses = losses.as<float>(),
                                    .logits = logits.as<float>(),
                                    .d_logits = gradient,
                                    .targets = target,
                                    .grad_scale = 1e-3f,
                                    .rows = m,
                                    .V = V,
                                    .dtype = t});
    best = std::min(best, now_seconds() - start);
  }
  static const double limit = stream_rate();
  double rate = static_cast<double>(m * V) * (4. + static_cast<double>(size_of(t))) / best;
  state.counters["GB/s"] = rate * 1e-9;
  state.counters["of_stream"] = rate / limit;
}

void register_all() {
  for (DType t : {DType::f32, DType::bf16}) {
    benchmark::RegisterBenchmark(fmt::format("softmax_loss_rows/{}", name_of(t)).c_str(), [=](benchmark::State& s) {
      run_rows(s, t);
    })->UseRealTime();
    for (std::int64_t chunk : {128, 256, 512, 1024})
      benchmark::RegisterBenchmark(fmt::format("linear_cross_entropy/{}/chunk{}", name_of(t), chunk).c_str(), [=](benchmark::State& s) {
        run_head(s, chunk, t);
      })->UseRealTime();
  }
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) {
  tessera::benchmarks::register_all();
  return tessera::benchmarks::run(argc, argv);
}
