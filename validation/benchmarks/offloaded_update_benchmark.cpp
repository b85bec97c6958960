// What a host does for an offloaded unit once the norm of all gradients is known: from the gradients as they came down to the bf16 copy
// that goes up. Ours is one pass over memory, in the pieces and staging buffers of a run. Beside it stand the passes of DeepSpeed's ZeRO
// with CPU Adam, which takes fp32 gradients and knows no copy: they are multiplied by the clip factor in place, Adam updates fp32 weights
// and moments, a cast makes the bf16 copy; a gradient that came down in bf16 is widened first. DeepSpeed is not linked: its passes are
// loops over the same vectors here, its Adam is ours without a copy, so each pass runs at the memory's speed and what is compared is
// passes.
//   offloaded_update_benchmark [MILLIONS OF PARAMETERS] [ROUNDS]        with OMP_NUM_THREADS threads
// Ways take turns, another one first in each round. The best turn of each counts, since what else a machine does only takes away; beside it
// stands the median of what the turns of a round say.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "kernels/adamw/adamw.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/sums/sums.hpp"
#include "limits.hpp"
#include "update_stream.hpp"

namespace tessera::benchmarks {
namespace {

constexpr std::int64_t piece = 1 << 22, staged_pieces = 4;  // as Frame::offload_piece() and zero.offload_optimizer.buffer_count

struct Way {
  std::string name;
  bool ours;     ///< what those after it are compared with
  double bytes;  ///< a parameter, read and written
  std::function<void()> run;
  std::vector<double> seconds = {};
};

/// Small positive numbers, whichever type they are read in.
Data filled(std::int64_t bytes) {
  Data data(static_cast<std::size_t>(bytes));
  kernels::parallel_ranges(bytes / 4, 1 << 20, [words = data.as<std::uint32_t>()](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) words[i] = 0x3c003c00u + static_cast<std::uint32_t>(i % 61) * 0x10001u;
  });
  return data;
}

/// State of a unit, its gradient in both types, and where copies go.
struct Unit {
  std::int64_t n;
  Data master = filled(4 * n), m = filled(4 * n), v = filled(4 * n);
  Data fp32 = filled(4 * n), bf16 = filled(2 * n), copy = filled(2 * n), staging = filled(2 * piece * staged_pieces);
  kernels::UpdateScalars scalars{.learning_rate = 1e-6f, .bias_correction1 = 0.5f, .bias_correction2 = 0.5f};
  kernels::FixedSum sum = {};
  std::int32_t not_finite = 0;

  kernels::Update update(DType gradient, void* to, std::int64_t begin, std::int64_t count) {
    auto* g = static_cast<std::byte*>(gradient == DType::f32 ? fp32.data() : bf16.data());
    return {.master = master.as<float>() + begin,
            .state = {m.as<float>() + begin, v.as<float>() + begin},
            .param = to,
            .grad = g + begin * static_cast<std::int64_t>(size_of(gradient)),
            .grad_dtype = gradient,
            .n = count,
            .weight_decay = 0.1f,
            .scalars = &scalars};
  }

  /// f(update of a piece), whose copy goes to the staging buffer whose turn it is.
  template <class F>
  void by_pieces(DType gradient, F f) {
    for (std::int64_t i = 0; i * piece < n; ++i)
      f(update(gradient, staging.as<std::uint16_t>() + i % staged_pieces * piece, i * piece, std::min(piece, n - i * piece)));
  }
  void one_pass(DType gradient) {
    by_pieces(gradient, [](const kernels::Update& p) { kernels::adamw({}, p); });
  }
  void norm(DType gradient) {
    kernels::sum_of_squares(
        {}, {.sum = &sum, .not_finite = &not_finite, .x = gradient == DType::f32 ? fp32.data() : bf16.data(), .n = n, .dtype = gradient});
  }

  void widen() { kernels::cast({}, fp32.data(), DType::f32, bf16.data(), DType::bf16, n); }
  void clip() {
    kernels::parallel_ranges(n, 4096, [g = fp32.as<float>(), factor = scalars.grad_scale](std::int64_t begin, std::int64_t end) {
      kernels::for_vectors(begin, end, [&](std::int64_t i, auto count) {
        kernels::store(g + i, kernels::load(g + i, count) * kernels::splat(factor), count);
      });
    });
  }
  void adam() { kernels::adamw({}, update(DType::f32, nullptr, 0, n)); }
  void round() { kernels::cast({}, copy.data(), DType::bf16, master.data(), DType::f32, n); }
};

std::vector<Way> ways_of(Unit& u) {
  return {
      {"one pass, fp32 gradients", true, 30, [&] { u.one_pass(DType::f32); }},
      {"  its streams without arithmetic", false, 30, [&] { u.by_pieces(DType::f32, [](const auto& p) { update_stream(p); }); }},
      {"  and the norm before it", false, 34, [&] { u.norm(DType::f32), u.one_pass(DType::f32); }},
      {"  DeepSpeed's: Adam, cast", false, 34, [&] { u.adam(), u.round(); }},
      {"  DeepSpeed's: clip, Adam, cast", false, 42, [&] { u.clip(), u.adam(), u.round(); }},
      {"one pass, bf16 gradients", true, 28, [&] { u.one_pass(DType::bf16); }},
      {"  its streams without arithmetic", false, 28, [&] { u.by_pieces(DType::bf16, [](const auto& p) { update_stream(p); }); }},
      {"  and the norm before it", false, 30, [&] { u.norm(DType::bf16), u.one_pass(DType::bf16); }},
      {"  DeepSpeed's, widened on the GPU: Adam, cast", false, 34, [&] { u.adam(), u.round(); }},
      {"  DeepSpeed's, widened on the GPU: clip, Adam, cast", false, 42, [&] { u.clip(), u.adam(), u.round(); }},
      {"  DeepSpeed's: cast, Adam, cast", false, 40, [&] { u.widen(), u.adam(), u.round(); }},
      {"  DeepSpeed's: cast, clip, Adam, cast", false, 48, [&] { u.widen(), u.clip(), u.adam(), u.round(); }},
  };
}

void print(const std::vector<Way>& ways, std::int64_t n) {
  const Way* base = nullptr;
  for (const Way& w : ways) {
    if (w.ours) base = &w;
    std::vector<double> ratios;
    for (std::size_t i = 0; i < w.seconds.size(); ++i) ratios.push_back(w.seconds[i] / base->seconds[i]);
    std::ranges::sort(ratios);
    const double best = std::ranges::min(w.seconds), parameters = static_cast<double>(n) / best;
    fmt::print("{:52} {:4.0f} B  {:6.3f} G parameters/s {:7.2f} GB/s", w.name, w.bytes, parameters * 1e-9, w.bytes * parameters * 1e-9);
    if (&w != base) fmt::print("  takes {:.3f} times as long ({:.3f})", best / std::ranges::min(base->seconds), ratios[ratios.size() / 2]);
    fmt::print("\n");
  }
}

void compare(std::int64_t n, int rounds) {
  Unit unit{.n = n};
  std::vector<Way> ways = ways_of(unit);
  fmt::print("{} M parameters, {} threads, {} rounds\n", n >> 20, kernels::threads(), rounds);
  for (int round = 0; round <= rounds; ++round)
    for (std::size_t i = 0; i < ways.size(); ++i) {
      Way& w = ways[(i + static_cast<std::size_t>(round)) % ways.size()];
      const double begin = now_seconds();
      w.run();
      if (round > 0) w.seconds.push_back(now_seconds() - begin);  // pages and clocks settle in the first
    }
  print(ways, n);
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) try {
  tessera::KernelRuntime runtime(0);
  tessera::benchmarks::compare((argc > 1 ? std::atoll(argv[1]) : 64) << 20, argc > 2 ? std::atoi(argv[2]) : 15);
  return 0;
} catch (const tessera::Error& e) {
  fmt::print(stderr, "offloaded_update_benchmark: {}\n", e.what());
  return static_cast<int>(e.code);
}
