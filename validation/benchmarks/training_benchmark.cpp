// A whole training step of a GPT-2-124M-sized Llama on one rank against the packed GEMM rate that the same run measures before and after
// it.
//   training_benchmark [fp32|bf16] [STEPS]
#include <algorithm>
#include <cstdio>

#include "limits.hpp"
#include "memory/runtime.hpp"
#include "model/record/flops.hpp"
#include "train/engine/engine.hpp"

namespace tessera {
namespace {

Deck deck_of(const std::string& dtype) {
  const std::string text =
      "[run]\nsteps = 1000\n[model]\nlayers = 12\nwidth = 768\nheads = 12\nkv_heads = 12\nff_width = 2048\nvocab = 50304\ntied = true\n"
      "[batch]\nglobal = 1\nmicro = 1\nsequence_length = 1024\n[data]\ntrain = \"none.bin\"\n[optimizer]\nlearning_rate = 1e-4\n"
      "[precision]\ncompute = \"" +
      dtype + "\"\n";
  return require_deck(parse_deck_text(text, "training_benchmark", {}, 1));
}

int run(const std::string& dtype, int steps) {
  const Deck deck = deck_of(dtype);
  const double before = benchmarks::gemm_rate(DType::f32), ours = benchmarks::gemm_rate(deck.precision.compute);
  Engine engine(plan_run(request_for(deck, Mesh{}, 0, Purpose::training)));
  engine.initialise_weights();
  for (std::size_t i = 0; i < engine.tokens(0).size(); ++i)
    engine.tokens(0)[i] = static_cast<std::int32_t>(i * 7919 % 50304),
    engine.targets(0)[i] = static_cast<std::int32_t>((i + 1) * 7919 % 50304);
  std::vector<double> seconds;
  for (int step = 0; step <= steps; ++step) {
    const double begin = now_seconds();
    engine.step();
    if (step > 0) seconds.push_back(now_seconds() - begin);  // the first step makes oneDNN's code
  }
  const double limit = std::max(before, benchmarks::gemm_rate(DType::f32));
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2], rate = 1024 / median;
  const FlopsPerToken flops = flops_per_token(deck);
  const auto length = static_cast<double>(deck.batch.sequence_length);
  std::printf("%s, %d threads, %d steps of 1024 tokens: %.3f s median (%.3f to %.3f), %.0f tokens/s\n", dtype.c_str(), kernels::threads(),
              steps, median, seconds.front(), seconds.back(), rate);
  std::printf("  model FLOPs: %.0f GFLOP/s full attention, %.0f causal\n", flops.full(length) * rate * 1e-9,
              flops.causal(length) * rate * 1e-9);
  std::printf("  limit: packed fp32 oneDNN GEMM %.0f GFLOP/s; share %.1f %% full, %.1f %% causal; our %s GEMM %.0f GFLOP/s\n", limit * 1e-9,
              100 * flops.full(length) * rate / limit, 100 * flops.causal(length) * rate / limit, dtype.c_str(), ours * 1e-9);
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::KernelRuntime runtime(0);
  return tessera::run(argc > 1 ? argv[1] : "bf16", argc > 2 ? std::atoi(argv[2]) : 7);
}
