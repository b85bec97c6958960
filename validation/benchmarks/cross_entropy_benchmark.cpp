// The head: loss and gradients against the GEMM rate (its three products), and the row pass alone against stream bandwidth.
#include <tuple>

#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/step/step.hpp"
#include "validation/unit/segment_run.hpp"

#include "validation/benchmarks/limits.hpp"

namespace tessera::benchmarks {
namespace {

void run_head(benchmark::State& state, std::int64_t chunk, DType t) {
  using enum ValueKind;
  constexpr std::int64_t M = 1024, C = 768, V = 50257;
  const auto bytes = [t](std::int64_t elements) { return elements * static_cast<std::int64_t>(size_of(t)); };
  const Segment segment = head_segment({.B = 1, .T = M, .C = C, .V = V, .dtype = t, .loss_chunk = chunk});
  const SegmentPass pass = backward_pass(segment, 0, Kept(segment.values.size(), KeptBy::none));
  test::SegmentRun head(segment);
  for (const auto& [kind, name, size] : {std::tuple(stream_in, "stream", bytes(M * C)), std::tuple(weight, "head.norm", bytes(C)),
                                         std::tuple(weight, "head.weight", bytes(V * C)), std::tuple(weight_gradient, "head.norm", 4 * C),
                                         std::tuple(weight_gradient, "head.weight", 4 * V * C), std::tuple(targets, "targets", 4 * M),
                                         std::tuple(row_weights, "row_weights", 4 * M),
                                         std::tuple(scalars, "scalars", static_cast<std::int64_t>(sizeof(kernels::StepScalars)))})
    std::ranges::fill(head.make(kind, name, size), std::byte{0});
  Data x(M * C, t), weights(V * C, t);
  std::memcpy(head.at<void>(stream_in, "stream"), x.data(), static_cast<std::size_t>(bytes(M * C)));
  std::memcpy(head.at<void>(weight, "head.weight"), weights.data(), static_cast<std::size_t>(bytes(V * C)));
  for (std::int64_t i = 0; i < M; ++i) head.at<std::int32_t>(targets, "targets")[i] = static_cast<std::int32_t>(i * 31 % V);
  std::fill_n(head.at<float>(row_weights, "row_weights"), M, 1.0f);
  double best = 1e30;
  for (auto _ : state) {
    double start = now_seconds();
    head.run(pass, 1e-3f);
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
  const float grad_scale = 1e-3f;
  const std::vector<float> weights(m, 1.0f);
  double best = 1e30;
  for (auto _ : state) {
    double start = now_seconds();
    kernels::softmax_loss_rows({}, {.losses = losses.as<float>(),
                                    .logits = logits.as<float>(),
                                    .d_logits = gradient,
                                    .targets = target,
                                    .weights = weights.data(),
                                    .grad_scale = &grad_scale,
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
      benchmark::RegisterBenchmark(fmt::format("head/{}/chunk{}", name_of(t), chunk).c_str(), [=](benchmark::State& s) {
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
