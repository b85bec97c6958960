// Products of rows with the matrices of their experts, beside one product of as many rows: M = 2048 rows of 8 experts, shared out evenly
// and unevenly. The limit is the packed forward product at 1024 x 3072 x 768 in fp32.
#include "kernels/grouped_gemm/grouped_gemm.hpp"

#include "validation/benchmarks/limits.hpp"

namespace tessera::benchmarks {
namespace {

enum class Use { forward, input_gradient, weight_gradient };
constexpr std::int64_t rows = 2048, experts = 8;

/// Row counts of experts: all the same, or falling from a quarter of all rows.
std::vector<std::int32_t> offsets_of(bool even) {
  std::vector<std::int32_t> at{0};
  const std::int64_t uneven[] = {512, 448, 384, 256, 192, 128, 96, 32};
  for (const std::int64_t n : uneven) at.push_back(at.back() + static_cast<std::int32_t>(even ? rows / experts : n));
  return at;
}

void run_grouped(benchmark::State& state, Use use, std::int64_t N, std::int64_t K, DType t, bool even) {
  const std::vector<std::int32_t> offsets = offsets_of(even);
  Data x(rows * K, t), y(rows * N, t), w(experts * N * K, t), d_w(experts * N * K, DType::f32);
  const kernels::GroupedGemm forward{.c = y.data(),
                                     .a = x.data(),
                                     .b = w.data(),
                                     .offsets = offsets.data(),
                                     .rows = rows,
                                     .E = experts,
                                     .N = N,
                                     .K = K,
                                     .b_transposed = true,
                                     .dtype = t};
  const kernels::GroupedGemm input{
      .c = x.data(), .a = y.data(), .b = w.data(), .offsets = offsets.data(), .rows = rows, .E = experts, .N = K, .K = N, .dtype = t};
  const kernels::GroupedWeightGradient weight{.d_w = static_cast<float*>(d_w.data()),
                                              .d_y = y.data(),
                                              .x = x.data(),
                                              .offsets = offsets.data(),
                                              .rows = rows,
                                              .E = experts,
                                              .N = N,
                                              .K = K,
                                              .dtype = t};
  const kernels::GroupedGemm& product = use == Use::forward ? forward : input;
  Data workspace(std::max(kernels::grouped_gemm_workspace_bytes(product), kernels::grouped_weight_gradient_workspace_bytes(weight)));
  double best = 1e30;
  for (auto _ : state) {
    const double start = now_seconds();
    if (use == Use::weight_gradient)
      kernels::grouped_weight_gradient(workspace.context(), weight);
    else
      kernels::grouped_gemm(workspace.context(), product);
    best = std::min(best, now_seconds() - start);
  }
  static const double limit = gemm_rate(DType::f32);
  const double rate = 2. * static_cast<double>(rows) * static_cast<double>(N) * static_cast<double>(K) / best;
  state.counters["GFLOP/s"] = rate * 1e-9;
  state.counters["of_fp32_packed"] = rate / limit;
}

void register_all() {
  struct Shape {
    const char* name;
    std::int64_t N, K;
  };
  for (const Shape s : {Shape{"gate_up", 2048, 768}, Shape{"down", 768, 1024}})
    for (const DType t : {DType::f32, DType::bf16})
      for (const auto& [use, use_name] :
           {std::pair{Use::forward, "forward"}, {Use::input_gradient, "input_gradient"}, {Use::weight_gradient, "weight_gradient"}})
        for (const bool even : {true, false}) {
          const std::string name = std::string(s.name) + "/" + std::string(name_of(t)) + "/" + use_name + (even ? "/even" : "/uneven");
          benchmark::RegisterBenchmark(name.c_str(), [=, use = use](benchmark::State& state) {
            run_grouped(state, use, s.N, s.K, t, even);
          })->UseRealTime();
        }
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) {
  tessera::benchmarks::register_all();
  return tessera::benchmarks::run(argc, argv);
}
