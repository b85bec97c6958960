// GEMM at the shapes of a 124M-parameter model, M = 1024 tokens: forward, input gradient and weight gradient; plain and packed weights; the
// fast and the reproducible way. The limit is the packed forward product at 1024 x 3072 x 768 in fp32, and in the type itself. Beside them
// the Newton-Schulz steps of that model's matrices, whose limit is the packed product in bf16, and beside it, by turns, their own products
// on packed operands of random numbers. With one thread processor time counts.
#include <vector>

#include "kernels/newton_schulz/newton_schulz.hpp"
#include "validation/benchmarks/limits.hpp"

namespace tessera::benchmarks {
namespace {

enum class Use { forward, input_gradient, weight_gradient };

kernels::Gemm gemm_of(Use use, std::int64_t M, std::int64_t N, std::int64_t K, DType t) {
  switch (use) {
    case Use::forward:
      return {.M = M, .N = N, .K = K, .b_transposed = true, .in = t, .out = t};
    case Use::input_gradient:
      return {.M = M, .N = K, .K = N, .in = t, .out = t};
    default:
      return {.M = N, .N = K, .K = M, .a_transposed = true, .accumulate = true, .in = t, .out = DType::f32};
  }
}

void run_gemm(benchmark::State& state, Use use, std::int64_t M, std::int64_t N, std::int64_t K, DType t, bool pack, bool reproducible) {
  kernels::Gemm g = gemm_of(use, M, N, K, t);
  Data a(g.M * g.K, t), b(g.N * g.K, t), c(g.M * g.N, g.out), none(std::size_t{64});
  g.a = a.data();
  g.b = b.data();
  g.c = c.data();
  std::size_t packed_bytes = pack ? kernels::gemm_packed_bytes(g) : 0;
  if (pack && packed_bytes == 0) return state.SkipWithError("packing brings nothing");
  Data packed(packed_bytes);
  if (pack) {
    kernels::gemm_pack_b(none.context(), packed.data(), g);
    g.b = packed.data();
    g.b_packed = true;
  }
  Data workspace(kernels::gemm_workspace_bytes(g));
  double best = 1e30;
  for (auto _ : state) {
    double start = compute_seconds();
    kernels::gemm(workspace.context(reproducible), g);
    best = std::min(best, compute_seconds() - start);
  }
  static const double limit = gemm_rate(DType::f32);
  double rate = 2. * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K) / best;
  state.counters["GFLOP/s"] = rate * 1e-9;
  state.counters["of_fp32_packed"] = rate / limit;
}

void run_newton_schulz(benchmark::State& state, std::int64_t rows, std::int64_t columns, bool reproducible) {
  Data x(rows * columns, DType::bf16), out(rows * columns, DType::bf16);
  const kernels::NewtonSchulz p{.out = out.as<bf16>(), .x = x.as<bf16>(), .rows = rows, .columns = columns};
  Data workspace(kernels::newton_schulz_workspace_bytes(p));
  const std::int64_t least = std::min(rows, columns), most = std::max(rows, columns);
  PackedProduct gram(least, least, most, DType::bf16), polynomial(least, least, least, DType::bf16),
      step(rows, columns, least, DType::bf16);
  double best = 1e30;
  std::vector<double> shares;
  for (auto _ : state) {
    double start = compute_seconds();
    for (int i = 0; i < 5; ++i) gram(), polynomial(), step();
    const double products = compute_seconds() - start;
    start = compute_seconds();
    kernels::newton_schulz(workspace.context(reproducible), p);
    const double seconds = compute_seconds() - start;
    best = std::min(best, seconds);
    shares.push_back(products / seconds);
  }
  std::ranges::nth_element(shares, shares.begin() + std::ssize(shares) / 2);
  static const double limit = gemm_rate(DType::bf16);
  const double rate = kernels::newton_schulz_flops(rows, columns) / best;
  state.counters["GFLOP/s"] = rate * 1e-9;
  state.counters["of_bf16_packed"] = rate / limit;
  state.counters["of_its_packed_products"] = shares[shares.size() / 2];
}

void register_all() {
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{768, 768}, {256, 768}, {2048, 768}, {768, 2048}})
    for (const bool reproducible : {false, true})
      benchmark::RegisterBenchmark(
          fmt::format("newton_schulz/{}x{}{}", rows, columns, reproducible ? "/reproducible" : "").c_str(),
          [=, rows = rows, columns = columns](benchmark::State& state) { run_newton_schulz(state, rows, columns, reproducible); })
          ->UseRealTime();
  struct Shape {
    const char* name;
    std::int64_t M, N, K;
  };
  for (Shape s : {Shape{"qkv", 1024, 2304, 768}, Shape{"proj", 1024, 768, 768}, Shape{"up", 1024, 4096, 768},
                  Shape{"down", 1024, 768, 2048}, Shape{"head", 256, 50257, 768}})
    for (DType t : {DType::f32, DType::bf16})
      for (auto [use, use_name] :
           {std::pair{Use::forward, "forward"}, {Use::input_gradient, "input_gradient"}, {Use::weight_gradient, "weight_gradient"}})
        for (auto [pack, reproducible, how] : {std::tuple{false, false, "plain"}, {true, false, "packed"}, {false, true, "reproducible"}}) {
          if (pack && (use == Use::weight_gradient || kernels::gemm_packed_bytes(gemm_of(use, s.M, s.N, s.K, t)) == 0)) continue;
          std::string name = std::string(s.name) + "/" + std::string(name_of(t)) + "/" + use_name + "/" + how;
          benchmark::RegisterBenchmark(name.c_str(), [=, use = use, pack = pack, reproducible = reproducible](benchmark::State& state) {
            run_gemm(state, use, s.M, s.N, s.K, t, pack, reproducible);
          })->UseRealTime();
        }
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) {
  tessera::benchmarks::register_all();
  return tessera::benchmarks::run(argc, argv);
}
