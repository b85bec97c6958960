#include "report/measure_kernels.hpp"

#include <algorithm>
#include <array>

#include "base/clock.hpp"
#include "kernels/adamw/adamw.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/fixed/fixed.hpp"
#include "kernels/sums/sums.hpp"
#include "model/record/products.hpp"
#include "model/record/segment.hpp"
#include "schedule/run/executor.hpp"
#include "train/engine/machine_rate.hpp"

namespace tessera {
namespace {

std::int64_t whole(double size) { return static_cast<std::int64_t>(size); }

void measure_products(Bench& bench, const MeasureSizes& sizes, DType dtype, ComputeRates& rates) {
  for (RateGrid* grid : {&rates.forward, &rates.input_gradient, &rates.weight_gradient})
    grid->axes = {sizes.tokens, sizes.features, sizes.features};
  for (const double tokens : sizes.tokens)
    for (const double outputs : sizes.features)
      for (const double inputs : sizes.features) {
        const products::Dims d{whole(tokens), whole(outputs), whole(inputs), dtype};
        // What a product reads of the pass before it is in caches; weights, gradients and results are elsewhere each time, as over layers.
        const auto rate = [&](const auto& product, std::int64_t out, std::int64_t in) {
          bench.release();
          const auto matrix = [&](std::int64_t elements) { return bench.take(static_cast<std::size_t>(elements) * sizeof(float)); };
          void *x = matrix(d.M * d.K), *y = matrix(d.M * d.N);
          const kernels::Context context = bench.context(kernels::gemm_workspace_bytes(product(x, y, nullptr, nullptr), bench.backend()));
          const auto sets = static_cast<std::int64_t>(bench.left() / (static_cast<std::size_t>(out + in) * sizeof(float) + 8192));
          std::vector<std::pair<void*, void*>> buffers;
          for (std::int64_t i = 0; i < std::clamp<std::int64_t>(sets, 1, 64); ++i)
            buffers.emplace_back(matrix(out), in > 0 ? matrix(in) : nullptr);
          std::size_t turn = 0;
          return rounded(products::flops(d) / bench.seconds([&] {
            const auto& [result, weight] = buffers[turn++ % buffers.size()];
            kernels::gemm(context, product(x, y, result, weight));
          }));
        };
        rates.forward.rates.push_back(rate(
            [&](void* x, void*, void* result, void* weight) { return products::forward(d, result, x, {weight}); }, d.M * d.N, d.N * d.K));
        rates.input_gradient.rates.push_back(
            rate([&](void*, void* y, void* result, void* weight) { return products::input_gradient(d, result, y, {weight}); }, d.M * d.K,
                 d.N * d.K));
        rates.weight_gradient.rates.push_back(rate(
            [&](void* x, void* y, void* result, void*) { return products::weight_gradient(d, static_cast<float*>(result), y, x, true); },
            d.N * d.K, 0));
      }
}

void measure_attention(Bench& bench, const MeasureSizes& sizes, DType dtype, ComputeRates& rates) {
  using kernels::packed_qkv;
  rates.attention_forward.axes = rates.attention_backward.axes = {sizes.lengths, sizes.head_dims};
  for (const double length : sizes.lengths)
    for (const double head_dim : sizes.head_dims) {
      // As many sequences as a micro-batch of some thousand tokens has.
      kernels::AttentionShape s{
          .B = std::max<std::int64_t>(1, 1024 / whole(length)), .T = whole(length), .H = 8, .G = 4, .D = whole(head_dim), .dtype = dtype};
      bench.release();
      const auto elements = [&](std::int64_t n) { return bench.take(static_cast<std::size_t>(n) * sizeof(float)); };
      const std::int64_t rows = s.B * s.T, width = (s.H + 2 * s.G) * s.D;
      void *qkv = elements(rows * width), *d_qkv = elements(rows * width), *out = elements(rows * s.H * s.D),
           *d_out = elements(rows * s.H * s.D);
      auto* lse = static_cast<float*>(elements(rows * s.H));
      const double flops = 2.0 * static_cast<double>(s.B * s.H * s.D) * length * length;
      const kernels::Context forward = bench.context(kernels::attention_forward_workspace_bytes(s, bench.backend()));
      const kernels::Context backward = bench.context(kernels::attention_backward_workspace_bytes(s, bench.backend()));
      rates.attention_forward.rates.push_back(rounded(flops / bench.seconds([&] {
        kernels::attention_forward(forward, {.out = out, .lse = lse, .qkv = packed_qkv(qkv, s), .shape = s});
      })));
      rates.attention_backward.rates.push_back(rounded(2.5 * flops / bench.seconds([&] {
        kernels::attention_backward(
            backward, {.d_qkv = packed_qkv(d_qkv, s), .d_out = d_out, .qkv = packed_qkv(qkv, s), .out = out, .lse = lse, .shape = s});
      })));
    }
}

/// A layer of some hundred features, whose segments hold every kernel that a model may call.
ModelShape layer_of(std::int64_t rows, DType dtype, kernels::Backend backend, bool qk_norm) {
  return {.B = 1,
          .T = rows,
          .C = 512,
          .V = 4096,
          .L = 1,
          .attention = {.H = 8, .G = 4, .D = 64, .Dv = 64, .qkv_bias = !qk_norm, .qk_norm = qk_norm},
          .block = {.F = 1408},
          .dtype = dtype,
          .backend = backend,
          .loss_chunk = rows};
}

/// The call of a kernel in the segments of a shape; null where they have none.
const Call* find_call(const std::vector<Segment>& segments, std::string_view kernel, const Segment*& of) {
  for (const Segment& segment : segments)
    for (const auto* calls : {&segment.forward, &segment.backward})
      for (const Call& call : *calls)
        if (call.kernel() == kernel) return of = &segment, &call;
  return nullptr;
}

/// Ids of a vocabulary, rows that all count, and rotations that leave numbers as large as they are; all else is as the bench filled it.
void fill_input(Bench& bench, const ValueInfo& v, void* at, std::size_t bytes, std::int64_t rows) {
  const auto write = [&](const auto& values) { kernels::copy(bench.context(0), at, values.data(), bytes); };
  const std::size_t n = bytes / 4;
  if (v.kind == ValueKind::rope_table) write(std::vector<float>(n, 0.70710678f));
  if (v.kind == ValueKind::row_weights || v.name == "counted_weights") write(std::vector<float>(n, 1));
  if (v.name == "counted") write(std::vector<std::int32_t>(n, static_cast<std::int32_t>(rows)));
  if (v.kind != ValueKind::tokens && v.kind != ValueKind::targets && v.name != "counted_targets") return;
  std::vector<std::int32_t> ids(n);
  for (std::size_t i = 0; i < n; ++i) ids[i] = static_cast<std::int32_t>(i * 2654435761u % 4096);
  write(ids);
}

/// Bytes/s of a call whose rows make it read and write about `bytes`.
double rate_of_call(Bench& bench, DType dtype, std::string_view kernel, bool qk_norm, double bytes) {
  const auto segments_of = [&](std::int64_t rows) { return model_segments(layer_of(rows, dtype, bench.backend(), qk_norm)); };
  const auto bytes_of = [](const Call& call) { return std::get<MemoryWork>(call.work).bytes; };
  const Segment* segment = nullptr;
  const std::vector<Segment> few = segments_of(64);
  const double row = bytes_of(*find_call(few, kernel, segment)) / 64;
  const std::int64_t rows = std::max<std::int64_t>(1, whole(bytes / row));
  const std::vector<Segment> segments = segments_of(rows);
  const Call& call = *find_call(segments, kernel, segment);
  bench.release();
  std::vector<void*> addresses(segment->values.size(), nullptr);
  const auto unsaid =
      static_cast<std::size_t>(std::max<std::int64_t>(4096 * 512, rows * 64)) * sizeof(float);  // of weights, tables, tokens
  for (const Touch& touch : call.touches) {
    const ValueInfo& v = segment->at(touch.value);
    void*& at = addresses[static_cast<std::size_t>(touch.value.id)];
    const std::size_t bytes = v.bytes > 0 ? static_cast<std::size_t>(v.bytes) : unsaid;
    at = bench.take(bytes);
    fill_input(bench, v, at, bytes, rows);
  }
  std::array<bool, 64> adds;  // of a segment's values
  adds.fill(true);
  const kernels::Context context = bench.context(call.workspace);
  const At at(addresses, adds, context);
  return rounded(bytes_of(call) / bench.seconds([&] { call.run(at); }));
}

/// Calls that touch other memory each time, in turn: a step touches gradients and state once, so they come from memory and not from caches.
class ColdCalls {
 public:
  /// As many sets of buffers of `bytes` together as the bench has room for.
  ColdCalls(Bench& bench, std::size_t bytes, const std::function<std::function<void()>()>& make) {
    bench.release();
    do calls_.push_back(make());
    while (bench.left() > bytes + 8 * 4096 + bench_rest);
  }
  void operator()() { calls_[next_++ % calls_.size()](); }

 private:
  static constexpr std::size_t bench_rest = 1 << 20;  ///< workspace and small values
  std::vector<std::function<void()>> calls_;
  std::size_t next_ = 0;
};

/// Bytes/s of kernels that tasks call by themselves.
double rate_of_task(Bench& bench, DType dtype, std::string_view kernel, double bytes) {
  const bool copy = dtype != DType::f32;
  const double each = kernel == "stream" ? 2 : kernel == "sum_of_squares" ? 4 : kernel == "accumulate" ? 20 : copy ? 30 : 28;
  const std::int64_t n = std::max<std::int64_t>(kernels::sum_block, whole(bytes / each) / kernels::sum_block * kernels::sum_block);
  const auto take = [&](std::int64_t count, std::size_t size) { return bench.take(static_cast<std::size_t>(count) * size); };
  const auto floats = [&] { return static_cast<float*>(take(n, 4)); };
  const auto make = [&]() -> std::function<void()> {
    if (kernel == "stream") {
      void *to = take(n, 1), *from = take(n, 1);
      return [=, c = bench.context(0)] { kernels::copy(c, to, from, static_cast<std::size_t>(n)); };
    }
    if (kernel == "sum_of_squares") {
      kernels::SumOfSquares s{.x = floats(), .n = n};
      s.sum = static_cast<kernels::FixedSum*>(take(1, 64)), s.not_finite = static_cast<std::int32_t*>(take(1, 64));
      return [=, c = bench.context(kernels::sum_of_squares_workspace_bytes(s, bench.backend()))] { kernels::sum_of_squares(c, s); };
    }
    if (kernel == "accumulate") {
      auto* sum = static_cast<std::int64_t*>(take(n, 8));
      auto* overflow = static_cast<std::int32_t*>(take(1, 64));
      const kernels::Context c = bench.context(0);
      kernels::fill_zero(c, sum, static_cast<std::size_t>(8 * n));
      return [=, x = floats()] { kernels::fixed_accumulate(c, {sum, x, n, overflow, kernels::fixed_limit}); };
    }
    kernels::Update a{.master = floats(), .state = {floats(), floats()}, .param = copy ? take(n, 2) : nullptr, .grad = floats(), .n = n};
    const kernels::UpdateScalars scalars{.learning_rate = 1e-5f};
    auto* there = static_cast<kernels::UpdateScalars*>(take(1, 64));
    kernels::copy(bench.context(0), there, &scalars, sizeof scalars);
    a.scalars = there;
    return [=, c = bench.context(0)] { kernels::adamw(c, a); };
  };
  ColdCalls calls(bench, static_cast<std::size_t>(each * static_cast<double>(n)), make);
  return rounded(each * static_cast<double>(n) / bench.seconds([&] { calls(); }));
}

}  // namespace

ComputeRates measure_passes(Bench& bench, const MeasureSizes& sizes, DType dtype) {
  ComputeRates rates;
  for (const std::string_view kernel : memory_kernels) {
    RateGrid& grid = rates.kernels[std::string(kernel)];
    grid.axes = {sizes.bytes};
    const bool of_task = kernel == "stream" || kernel == "sum_of_squares" || kernel == "accumulate" || kernel == "adamw";
    // A model has QK-norm or biases here: between them they call all kernels.
    const Segment* ignored = nullptr;
    const bool qk_norm = find_call(model_segments(layer_of(64, dtype, bench.backend(), true)), kernel, ignored) != nullptr;
    bench.refill();
    for (const double bytes : sizes.bytes)
      grid.rates.push_back(of_task ? rate_of_task(bench, dtype, kernel, bytes) : rate_of_call(bench, dtype, kernel, qk_norm, bytes));
  }
  return rates;
}

ComputeRates measure_compute(Bench& bench, const MeasureSizes& sizes, DType dtype,
                             const std::function<void(const std::string&)>& progress) {
  progress(fmt::format("passes over memory in {}", name_of(dtype)));
  ComputeRates rates = measure_passes(bench, sizes, dtype);
  progress(fmt::format("products in {}", name_of(dtype)));
  bench.refill();
  measure_products(bench, sizes, dtype, rates);
  progress(fmt::format("attention in {}", name_of(dtype)));
  bench.refill();
  measure_attention(bench, sizes, dtype, rates);
  rates.peak = rounded(measure_gemm_rate(dtype, bench.backend()));
  for (const RateGrid* grid :
       {&rates.forward, &rates.input_gradient, &rates.weight_gradient, &rates.attention_forward, &rates.attention_backward})
    rates.peak = std::max(rates.peak, grid->fastest());
  return rates;
}

ComputeRates measure_codes(Bench& bench, const MeasureSizes& sizes) {
  ComputeRates rates;
  for (RateGrid* grid : {&rates.forward, &rates.input_gradient, &rates.weight_gradient})
    grid->axes = {sizes.tokens, sizes.features, sizes.features};
  // Codes are made in passes of their own, which a step's tasks count as bytes.
  const auto rate = [&](std::int64_t M, std::int64_t N, std::int64_t K, DType out) {
    bench.release();
    kernels::Gemm g{.M = M, .N = N, .K = K, .b_transposed = true, .accumulate = out == DType::f32, .in = DType::bf16, .out = out};
    g.a = bench.take(static_cast<std::size_t>(M * K)), g.b = bench.take(static_cast<std::size_t>(N * K));
    g.c = bench.take(static_cast<std::size_t>(M * N) * size_of(out));
    const auto* scales = static_cast<const float*>(bench.take(sizeof(float)));
    g.fp8 = {.a = {.scales = scales}, .b = {.scales = scales}};
    const kernels::Context context = bench.context(kernels::gemm_workspace_bytes(g, bench.backend()));
    return rounded(2.0 * static_cast<double>(M * N) * static_cast<double>(K) / bench.seconds([&] { kernels::gemm(context, g); }));
  };
  for (const double tokens : sizes.tokens)
    for (const double outputs : sizes.features)
      for (const double inputs : sizes.features) {
        const std::int64_t M = whole(tokens), N = whole(outputs), K = whole(inputs);
        rates.forward.rates.push_back(rate(M, N, K, DType::bf16));
        rates.input_gradient.rates.push_back(rate(M, K, N, DType::bf16));
        rates.weight_gradient.rates.push_back(rate(N, K, M, DType::f32));
      }
  for (const RateGrid* grid : {&rates.forward, &rates.input_gradient, &rates.weight_gradient})
    rates.peak = std::max(rates.peak, grid->fastest());
  return rates;
}

double measure_call(Bench& bench) {
  bench.release();
  void *to = bench.take(4096), *from = bench.take(4096);
  return rounded(bench.seconds([&, c = bench.context(0)] { kernels::add(c, to, to, from, 256, DType::f32); }));
}

double measure_task_overhead() {
  constexpr std::int64_t tasks = 4000;
  Schedule schedule;
  schedule.sections.push_back({"tasks", {}});
  for (std::int64_t i = 0; i < tasks; ++i) schedule.sections.front().tasks.push_back({.name = "nothing", .op = Zero{}, .uses = {}});
  schedule.program(ProgramKind::train).phases = {{0, 1}};
  HostExecutor executor(TaskTable(schedule, place(schedule), {}, [](const TaskRun&) {}), LaneMode::inline_order);
  executor.run(ProgramKind::train);
  const double begin = now_seconds();
  executor.run(ProgramKind::train);
  return rounded((now_seconds() - begin) / static_cast<double>(tasks));
}

}  // namespace tessera
