// Memory-bound kernels against the stream bandwidth of this machine. Streams and kernels take turns in one run, since the speed of shared
// machines drifts, and the best turn of each counts.
//   memory_bound_benchmark [--threads 2] [--mib 640] [--repeat 10] [--only adamw] [--cpu-time] [--json]
// GB/s counts the bytes that a kernel must read and write once. The first share is of the stream that reads and writes in the kernel's
// proportion (writes are cheaper than reads, and rewriting is cheapest), the second of the best stream. --cpu-time counts the process's
// processor time instead of wall time: with 1 thread, the number to look at while others use the machine.
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>
#include "base/json.hpp"

#include "base/clock.hpp"
#include "kernels/adafactor/adafactor.hpp"
#include "kernels/adam8bit/adam8bit.hpp"
#include "kernels/adamw/adamw.hpp"
#include "kernels/attention_sinks/attention_sinks.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/expert_blocks/expert_blocks.hpp"
#include "kernels/fixed/fixed.hpp"
#include "kernels/fp8/fp8.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/head_blocks/head_blocks.hpp"
#include "kernels/key_parts/key_parts.hpp"
#include "kernels/lamb/lamb.hpp"
#include "kernels/lion/lion.hpp"
#include "kernels/parallel.hpp"
#include "kernels/qk_norm_rope/qk_norm_rope.hpp"
#include "kernels/quantize/quantize.hpp"
#include "kernels/ring_attention/ring_attention.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"
#include "kernels/rope/rope.hpp"
#include "kernels/sgd/sgd.hpp"
#include "kernels/signs/signs.hpp"
#include "kernels/sums/sums.hpp"
#include "kernels/swiglu/swiglu.hpp"
#include "kernels/vector/vector.hpp"
#include "kernels/wide_qk_norm/wide_qk_norm.hpp"
#include "memory/runtime.hpp"
#include "update_stream.hpp"

namespace tessera::kernels {
namespace {

struct Settings {
  std::int64_t threads = 2, mib = 640, repeat = 10;
  std::string only;
  bool json = false, cpu_time = false;
};

/// Memory in huge pages, touched by the threads that will use it.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes) {
    base_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) fail(ExitCode::memory, "no {} bytes for the benchmark: pass a smaller --mib", bytes);
    madvise(base_, bytes, MADV_HUGEPAGE);
    refill();
  }
  Memory(const Memory&) = delete;
  ~Memory() { munmap(base_, bytes_); }
  /// Kernels leave each other what would be NaN or subnormal, and slow, in another type: so this runs before each turn.
  void refill() {
    // Small positive values are good for every kernel here, as fp32, as bf16 and as fixed point.
    auto* words = static_cast<std::uint32_t*>(base_);
    parallel_ranges(static_cast<std::int64_t>(bytes_ / 4), 1 << 20, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) words[i] = 0x3c003c00u + static_cast<std::uint32_t>(i % 61) * 0x10001u;
    });
  }
  /// Cuts the memory into streams of `weights` bytes an element, each on a 4 KiB boundary; returns the number of elements.
  std::int64_t cut(std::initializer_list<int> weights, std::byte** streams, std::int64_t multiple) const {
    std::int64_t total = 0;
    for (int w : weights) total += w;
    std::int64_t n = static_cast<std::int64_t>(bytes_ - 4096 * weights.size()) / total / multiple * multiple;
    auto* at = static_cast<std::byte*>(base_);
    for (int w : weights) {
      *streams++ = at;
      at += round_up(n * w, 4096);
    }
    return n;
  }

 private:
  std::size_t bytes_;
  void* base_;
};

double seconds(const Settings& s) {
  if (!s.cpu_time) return now_seconds();
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Contender {
  std::string name;
  double bytes;      ///< that must be read and written
  std::string peer;  ///< the stream to compare with; empty for a stream
  std::function<void()> run;
  double best_seconds = std::numeric_limits<double>::infinity();
  double bandwidth() const { return bytes / best_seconds; }
};

/// read sums, copy, triad, join of four and spread to two write around the caches, update rewrites three of the four streams it reads.
void add_streams(std::vector<Contender>& list, const Memory& memory) {
  std::byte* p[5] = {};
  auto f = [](std::byte* b) { return reinterpret_cast<float*>(b); };
  auto over = [&](const char* name, std::int64_t n, double bytes, auto body) {
    list.push_back({name, bytes * static_cast<double>(n), "", [n, body] {
                      parallel_ranges(n, 16384, [&](std::int64_t begin, std::int64_t end) {
                        body(begin, end);
                        stream_fence();
                      });
                    }});
  };
  std::int64_t n = memory.cut({4}, p, 1024);
  over("read", n, 4, [a = f(p[0])](std::int64_t begin, std::int64_t end) {
    volatile float sink = fold(end - begin, [&](std::int64_t i, auto c, f32x16& sum) { sum += load(a + begin + i, c); });
    static_cast<void>(sink);
  });
  n = memory.cut({4, 4}, p, 1024);
  over("copy", n, 8, [a = f(p[0]), b = f(p[1])](std::int64_t begin, std::int64_t end) {
    for_vectors(begin, end, [&](std::int64_t i, auto c) { store<true>(b + i, load(a + i, c), c); });
  });
  n = memory.cut({4, 4, 4}, p, 1024);
  over("triad", n, 12, [a = f(p[0]), b = f(p[1]), o = f(p[2])](std::int64_t begin, std::int64_t end) {
    for_vectors(begin, end, [&](std::int64_t i, auto c) { store<true>(o + i, fma(load(a + i, c), splat(0.5f), load(b + i, c)), c); });
  });
  n = memory.cut({4, 4, 4}, p, 1024);
  over("spread to two", n, 12, [a = f(p[0]), b = f(p[1]), o = f(p[2])](std::int64_t begin, std::int64_t end) {
    for_vectors(begin, end, [&](std::int64_t i, auto c) {
      const f32x16 x = load(a + i, c);
      store<true>(b + i, x, c), store<true>(o + i, x, c);
    });
  });
  n = memory.cut({4, 4, 4, 4, 4}, p, 1024);
  over("join of four", n, 20, [a = f(p[0]), b = f(p[1]), d = f(p[2]), e = f(p[3]), o = f(p[4])](std::int64_t begin, std::int64_t end) {
    for_vectors(begin, end, [&](std::int64_t i, auto c) {
      store<true>(o + i, (load(a + i, c) + load(b + i, c)) + (load(d + i, c) + load(e + i, c)), c);
    });
  });
  n = memory.cut({4, 4, 4, 4}, p, 1024);
  list.push_back({"update", 28 * static_cast<double>(n), "", [=] {
                    benchmarks::update_stream({.master = f(p[0]), .state = {f(p[1]), f(p[2])}, .grad = p[3], .n = n});
                  }});
}

void add_adamw(std::vector<Contender>& list, const Memory& memory, const UpdateScalars& scalars) {
  std::byte* p[5] = {};
  auto f = [](std::byte* b) { return reinterpret_cast<float*>(b); };
  // Each beside the stream of its own proportion, and of as many streams.
  auto add_variant = [&](const std::string& kind, std::int64_t n, DType grad, void* param, double bytes) {
    Update call{.master = f(p[0]),
                .state = {f(p[1]), f(p[2])},
                .param = param,
                .grad = p[3],
                .grad_dtype = grad,
                .n = n,
                .weight_decay = 0.1f,
                .scalars = &scalars};
    const double moved = bytes * static_cast<double>(n);
    const std::string stream = "update" + kind;
    if (!kind.empty()) list.push_back({stream, moved, "", [call] { benchmarks::update_stream(call); }});
    list.push_back({"adamw" + kind, moved, stream, [call] { adamw({}, call); }});
  };
  std::int64_t n = memory.cut({4, 4, 4, 4}, p, 1024);
  add_variant("", n, DType::f32, nullptr, 28);
  n = memory.cut({4, 4, 4, 4, 2}, p, 1024);
  add_variant(", bf16 copy", n, DType::f32, p[4], 30);
  n = memory.cut({4, 4, 4, 2, 2}, p, 1024);
  add_variant(", bf16 gradient, bf16 copy", n, DType::bf16, p[4], 28);
  n = memory.cut({4, 4, 4, 8, 2}, p, 1024);
  add_variant(", int64 gradient, bf16 copy", n, DType::i64, p[4], 34);
  // Beside the stream of AdamW's proportion: codes and scales take 65/64 bytes a moment.
  n = memory.cut({4, 2, 2, 4, 2}, p, 1024);
  const auto narrow = [&](const char* name, StateType type, double bytes, auto* update) {
    const Update call{.master = f(p[0]),
                      .state = {p[1], p[2]},
                      .state_type = type,
                      .stochastic = true,
                      .param = p[4],
                      .grad = p[3],
                      .n = n,
                      .weight_decay = 0.1f,
                      .scalars = &scalars};
    list.push_back({name, bytes * static_cast<double>(n), "update", [call, update] { update({}, call); }});
  };
  narrow("adamw, bf16 moments by chance, bf16 copy", StateType::bf16, 22, adamw);
  narrow("adam8bit, bf16 copy", StateType::f32, 14 + 4 * 65.0 / 64, adam8bit);
}

/// Other optimizers' updates with a bf16 copy, each beside the stream whose share of writes is nearest. LAMB's and Adafactor's bytes are
/// those of all their passes.
void add_optimizers(std::vector<Contender>& list, const Memory& memory, const UpdateScalars& scalars) {
  std::byte* p[5] = {};
  const auto add = [&](const char* name, double bytes, const Update& call, auto... passes) {
    list.push_back(
        {name, bytes * static_cast<double>(call.n), bytes == 4 ? "read" : "update", [call, passes...] { (passes({}, call), ...); }});
  };
  const auto update = [&](std::int64_t n) {
    return Update{.master = reinterpret_cast<float*>(p[0]), .param = p[1], .grad = p[2], .n = n, .weight_decay = 0.1f, .scalars = &scalars};
  };
  Update call = update(memory.cut({4, 2, 4}, p, 1024));
  add("sgd, bf16 copy", 14, call, sgd);
  call = update(memory.cut({4, 2, 4, 4}, p, 1024));
  call.state[0] = p[3];
  add("sgd_momentum, bf16 copy", 22, call, sgd_momentum);
  add("lion, bf16 copy", 22, call, lion);
  call = update(memory.cut({4, 2, 4, 4, 4}, p, 1024));
  call.state[0] = p[3], call.state[1] = p[4];
  call.tensor_elements = call.n;
  const auto sums = std::make_shared<std::array<FixedSum, most_update_sums>>();
  call.sums = sums->data();
  // Of 1, which a pass before would have made; one that makes them adds to them.
  const auto one = [sums](const Context&, const Update&) {
    sums->fill({});
    for (FixedSum& sum : *sums) sum.add(1);
  };
  add("lamb_moments", 24, call, one, lamb_moments);
  add("lamb, bf16 copy", 18, call, one, lamb);
  // A matrix of 4,096 columns; what is kept of its lines lies in small.
  constexpr std::int64_t columns = 4096;
  call = update(memory.cut({4, 2, 4}, p, columns));
  call.tensor_elements = call.n;
  call.sums = sums->data();
  const std::int64_t rows = call.n / columns;
  const auto lines = std::make_shared<std::vector<float>>(static_cast<std::size_t>(rows + columns), 1e-4f);
  const auto words =
      std::make_shared<std::vector<std::int64_t>>(static_cast<std::size_t>(words_of_line * (rows + columns) + words_of_matrix));
  call.lines = {.rows = rows,
                .columns = columns,
                .width = columns,
                .of_rows = lines->data(),
                .of_columns = lines->data() + rows,
                .sums = words->data()};
  const auto lines_of_one = [lines, words, one](const Context& context, const Update& u) {
    one(context, u);
    std::ranges::fill(*words, 0);
    words->at(static_cast<std::size_t>(words_of_line * (u.lines.rows + u.lines.columns))) = std::bit_cast<std::int64_t>(1e-4);
  };
  add("adafactor_squares", 4, call, lines_of_one, adafactor_squares);
  add("adafactor_direction", 4, call, lines_of_one, adafactor_direction);
  add("adafactor, bf16 copy", 14, call, lines_of_one, adafactor);
}

/// Each beside the stream whose share of writes is nearest.
void add_quantize(std::vector<Contender>& list, const Memory& memory) {
  std::byte* p[4] = {};
  const auto add = [&](const std::string& name, double bytes, std::int64_t n, const char* peer, std::function<void()> run) {
    list.push_back({name, bytes * static_cast<double>(n), peer, std::move(run)});
  };
  for (const Wire wire : {Wire::int8_blocks, Wire::int4_blocks}) {
    const std::string bits = fmt::format(", {} bits", code_bits(wire));
    const double codes = static_cast<double>(wire_bytes(wire, wire_block)) / wire_block;
    constexpr double error = static_cast<double>(wire_bytes(Wire::int8_blocks, wire_block)) / wire_block;
    std::int64_t n = memory.cut({4, 2, 2}, p, 64 * wire_block);
    const auto* x = reinterpret_cast<const float*>(p[0]);
    add("encode_blocks fp32" + bits, 4 + codes, n, "join of four",
        [=] { encode_blocks({}, {.blocks = p[1], .x = x, .n = n, .wire = wire}); });
    // Scales of errors that are as large as the values, and codes of all sizes.
    add("encode_with_error" + bits, 4 + codes + 2 * error, n, "join of four",
        [=] { encode_with_error({}, {.blocks = p[1], .error = p[2], .x = x, .n = n, .wire = wire}); });
    n = memory.cut({2, 2}, p, 64 * wire_block);
    add("decode_blocks bf16" + bits, 2 + codes, n, "spread to two",
        [=] { decode_blocks({}, {.x = p[0], .blocks = p[1], .dtype = DType::bf16, .n = n, .wire = wire}); });
    n = memory.cut({4, 2, 2}, p, 64 * wire_block);
    auto* sum = reinterpret_cast<float*>(p[0]);
    add("sum_blocks of two" + bits, 4 + 2 * codes, n, "copy",
        [=] { sum_blocks({}, {.sum = sum, .blocks = p[1], .n = n, .members = 2, .wire = wire}); });
  }
}

/// Products of a decoded token: a row and weights of K columns, of which the weights are what moves.
void add_row_products(std::vector<Contender>& list, const Memory& memory) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t K : {2048, 8192}) {
      std::byte* p[3] = {};
      const auto element = static_cast<int>(size_of(type));
      const std::int64_t n = memory.cut({64, 64 * element}, p, K) / K * 64;  // rows of w
      auto workspace = std::make_shared<std::vector<float>>(static_cast<std::size_t>(K + 1024));
      list.push_back(
          {fmt::format("row product of {} {}", K, name_of(type)), static_cast<double>(n * K * element), "read", [=] {
             const std::span<std::byte> room = std::as_writable_bytes(std::span(*workspace));
             gemm({.workspace = room},
                  {.c = p[0], .a = p[0] + 32 * n, .b = p[1], .M = 1, .N = n, .K = K, .b_transposed = true, .in = type, .out = type});
           }});
    }
}

/// Of signs for two ranks. A pack reads its numbers after a pass that sums their squares.
void add_signs(std::vector<Contender>& list, const Memory& memory, FixedSum& sum) {
  std::byte* p[3] = {};
  const std::int64_t n = memory.cut({4, 4, 1}, p, 2 * sign_word), part = n / 2, step = part / sign_word + 1;
  auto *x = reinterpret_cast<float*>(p[0]), *error = reinterpret_cast<float*>(p[1]);
  auto* words = reinterpret_cast<std::uint32_t*>(p[2]);
  auto* scale = reinterpret_cast<float*>(words + step - 1);
  const auto bytes = [&](double each) { return each * static_cast<double>(n); };
  list.push_back(
      {"sum_sign_squares", bytes(8), "read", [=, &sum] { sum_sign_squares({}, {.sum = &sum, .x = x, .error = error, .n = n}); }});
  list.push_back(
      {"pack_signs", bytes(12.125), "copy", [=] {
         FixedSum one;
         one.add(1);
         pack_signs({},
                    {.words = words, .scale = scale, .x = x, .error = error, .sum = &one, .n = n, .parts = 2, .part = part, .step = step});
       }});
  list.push_back({"sum_signs of two", bytes(4.125), "copy",
                  [=] { sum_signs({}, {.error = error, .words = words, .scale = scale, .n = part, .members = 2, .step = step}); }});
  list.push_back({"unpack_signs", bytes(4.125), "copy",
                  [=] { unpack_signs({}, {.x = x, .words = words, .scale = scale, .n = n, .part = part, .step = step}); }});
}

void add_rmsnorm(std::vector<Contender>& list, const Memory& memory, DType dtype, const Memory& small, std::vector<float>& rstd) {
  constexpr int C = 2048;
  int e = static_cast<int>(size_of(dtype));
  std::string suffix = dtype == DType::f32 ? ", fp32" : ", bf16";
  std::byte* p[4] = {};
  std::int64_t n = memory.cut({e, e}, p, C);
  // Weights, statistics and workspace lie in small's three parts.
  std::byte* parts[3];
  small.cut({C * 4, C * 4, 64 * C * 4}, parts, 1);
  void* weight = parts[0];
  auto* d_weight = reinterpret_cast<float*>(parts[1]);
  std::span<std::byte> workspace(parts[2], 64 * C * 4);
  RmsnormForward forward{.out = p[1], .rstd = rstd.data(), .x = p[0], .weight = weight, .rows = n / C, .C = C, .dtype = dtype};
  list.push_back({"rmsnorm forward" + suffix, 2.0 * e * static_cast<double>(n), "copy", [=] { rmsnorm_forward({}, forward); }});
  for (bool residual : {false, true}) {
    n = residual ? memory.cut({e, e, e, e}, p, C) : memory.cut({e, e, e}, p, C);
    RmsnormBackward backward{.d_x = p[2],
                             .d_weight = d_weight,
                             .d_out = p[0],
                             .d_residual = residual ? p[3] : nullptr,
                             .x = p[1],
                             .weight = weight,
                             .rstd = rstd.data(),
                             .rows = n / C,
                             .C = C,
                             .dtype = dtype};
    list.push_back({std::string("rmsnorm backward") + (residual ? " + residual" : "") + suffix,
                    (residual ? 4.0 : 3.0) * e * static_cast<double>(n), "triad",
                    [=] { rmsnorm_backward({.workspace = workspace}, backward); }});
  }
}

/// Eight query heads on two key heads. Backward leaves the value heads alone. `table` has 512 * 128 values.
void add_qk_norm_rope(std::vector<Contender>& list, const Memory& memory, DType dtype, const Memory& small, std::vector<float>& rstd,
                      const std::vector<float>& table) {
  constexpr int H = 8, G = 2, T = 512, D = 128, width = (H + 2 * G) * D;
  const int e = static_cast<int>(size_of(dtype));
  const std::string suffix = dtype == DType::f32 ? ", fp32" : ", bf16";
  std::byte* p[2] = {};
  const std::int64_t n = memory.cut({e, e}, p, width), M = n / width;
  QkNormRopeBackward backward{.rstd = rstd.data(), .table = table.data(), .M = M, .T = T, .H = H, .G = G, .D = D, .dtype = dtype};
  std::byte* parts[3];
  const std::size_t workspace_bytes = qk_norm_rope_backward_workspace_bytes(backward);
  small.cut({D * 4, D * 4, static_cast<int>(workspace_bytes)}, parts, 1);
  backward.d_qkv = p[0], backward.x = p[1], backward.q_norm = backward.k_norm = parts[0];
  backward.d_q_norm = backward.d_k_norm = reinterpret_cast<float*>(parts[1]);
  const std::span<std::byte> workspace(parts[2], workspace_bytes);
  const QkNormRopeForward forward{.out = p[1],
                                  .rstd = rstd.data(),
                                  .x = p[0],
                                  .q_norm = parts[0],
                                  .k_norm = parts[0],
                                  .table = table.data(),
                                  .M = M,
                                  .T = T,
                                  .H = H,
                                  .G = G,
                                  .D = D,
                                  .dtype = dtype};
  list.push_back({"qk_norm_rope forward" + suffix, 2.0 * e * static_cast<double>(n), "copy", [=] { qk_norm_rope_forward({}, forward); }});
  list.push_back({"qk_norm_rope backward" + suffix, 3.0 * e * static_cast<double>(M * (H + G) * D), "update",
                  [=] { qk_norm_rope_backward({.workspace = workspace}, backward); }});
}

/// As many query as key features, and as many others. Statistics of all rows lie in `sums`.
void add_wide_qk_norm(std::vector<Contender>& list, const Memory& memory, DType dtype, const Memory& small, std::vector<float>& sums) {
  constexpr int C = 512, width = 3 * C;
  const int e = static_cast<int>(size_of(dtype));
  const std::string suffix = dtype == DType::f32 ? ", fp32" : ", bf16";
  std::byte* p[2] = {};
  const std::int64_t n = memory.cut({e, e}, p, width), M = n / width;
  const WideQkShape shape{.M = M, .Q = C, .K = C, .stride = width, .dtype = dtype};
  WideQkNormBackward backward{.shape = shape};
  std::byte* parts[3];
  const std::size_t workspace_bytes = wide_qk_norm_backward_workspace_bytes(backward);
  small.cut({C * 4, C * 4, static_cast<int>(workspace_bytes)}, parts, 1);
  backward.d = p[0], backward.x = p[1], backward.q_norm = backward.k_norm = parts[0];
  backward.d_q_norm = backward.d_k_norm = reinterpret_cast<float*>(parts[1]);
  backward.sums = backward.dots = sums.data();
  const std::span<std::byte> workspace(parts[2], workspace_bytes);
  const WideQkNorm forward{.out = p[1], .x = p[0], .sums = sums.data(), .q_norm = parts[0], .k_norm = parts[0], .shape = shape};
  list.push_back({"wide_qk_norm forward" + suffix, 2.0 * e * static_cast<double>(n), "copy", [=] { wide_qk_norm({}, forward); }});
  list.push_back({"wide_qk_norm backward" + suffix, 3.0 * e * static_cast<double>(M * 2 * C), "update",
                  [=] { wide_qk_norm_backward({.workspace = workspace}, backward); }});
}

void add_swiglu(std::vector<Contender>& list, const Memory& memory, DType dtype) {
  constexpr std::int64_t F = 2816;
  int e = static_cast<int>(size_of(dtype));
  std::string suffix = dtype == DType::f32 ? ", fp32" : ", bf16";
  std::byte* p[3] = {};
  for (const auto& [name, activation] : {std::pair{"swiglu", GateActivation::silu}, {"gelu_tanh", GateActivation::gelu_tanh}}) {
    std::int64_t n = memory.cut({e, 2 * e}, p, F);
    SwigluForward forward{.out = p[0], .gate_up = p[1], .M = n / F, .F = F, .dtype = dtype, .activation = activation};
    list.push_back({name + (" forward" + suffix), 3.0 * e * static_cast<double>(n), "triad", [=] { swiglu_forward({}, forward); }});
    n = memory.cut({e, 2 * e, 2 * e}, p, F);
    SwigluBackward backward{
        .d_gate_up = p[2], .d_out = p[0], .gate_up = p[1], .M = n / F, .F = F, .dtype = dtype, .activation = activation};
    list.push_back({name + (" backward" + suffix), 5.0 * e * static_cast<double>(n), "triad", [=] { swiglu_backward({}, backward); }});
  }
}

/// Codes of bf16: blocks take one pass, others find largest magnitudes in one before.
void add_fp8(std::vector<Contender>& list, const Memory& memory, float* scales) {
  constexpr std::int64_t columns = 4096;
  std::byte* p[2] = {};
  const std::int64_t n = memory.cut({2, 1}, p, 128 * columns);
  for (const auto& [name, scaling] :
       {std::pair{"tensor", Fp8Scaling::tensor}, {"rows", Fp8Scaling::rows}, {"blocks", Fp8Scaling::row_blocks}})
    for (const bool transposed : {false, true}) {
      const Fp8Quantize call{.codes = reinterpret_cast<std::uint8_t*>(p[1]),
                             .scales = scales,
                             .x = p[0],
                             .rows = n / columns,
                             .columns = columns,
                             .transposed = transposed,
                             .scaling = scaling};
      const bool twice = scaling == Fp8Scaling::tensor || (scaling == Fp8Scaling::rows && transposed);
      list.push_back({fmt::format("fp8_quantize {}{}", name, transposed ? ", transposed" : ""),
                      (twice ? 5.0 : 3.0) * static_cast<double>(n), "copy", [=] { fp8_quantize({}, call); }});
    }
}

/// Rows of eight query heads on two key heads for two ranks.
void add_head_blocks(std::vector<Contender>& list, const Memory& memory, DType dtype) {
  constexpr int H = 8, G = 2, D = 128, width = (H + 2 * G) * D;
  const int e = static_cast<int>(size_of(dtype));
  const std::string suffix = dtype == DType::f32 ? ", fp32" : ", bf16";
  std::byte* p[2] = {};
  const std::int64_t n = memory.cut({e, e}, p, width);
  const HeadBlocks call{.to = p[1], .from = p[0], .B = 1, .T = n / width, .N = 2, .H = H, .G = G, .D = D, .dtype = dtype};
  const double moved = 2.0 * e * static_cast<double>(call.T * width);
  list.push_back({"rows_to_head_blocks" + suffix, moved, "copy", [=] { rows_to_head_blocks({}, call); }});
  list.push_back({"head_blocks_to_rows" + suffix, moved, "copy", [=] { head_blocks_to_rows({}, call); }});
}

/// Rows of eight query heads on a key head that two of two ranks have.
void add_key_parts(std::vector<Contender>& list, const Memory& memory, DType dtype) {
  constexpr int H = 8, D = 128, keys = 2 * D, width = H * D + keys;
  const int e = static_cast<int>(size_of(dtype));
  const std::string suffix = dtype == DType::f32 ? ", fp32" : ", bf16";
  std::byte* p[3] = {};
  const std::int64_t M = memory.cut({e, e, e}, p, width) / width;
  const KeyParts shape{.M = M, .H = H, .D = D, .N = 2, .sharing = 2, .dtype = dtype};
  const double row = 2.0 * e * static_cast<double>(M);
  list.push_back({"join_key_parts" + suffix, row * width, "copy",
                  [=] { join_key_parts({}, {.rows = p[0], .made = p[1], .parts = p[2], .shape = shape}); }});
  list.push_back({"spread_key_gradients" + suffix, row * keys, "copy",
                  [=] { spread_key_gradients({}, {.parts = p[2], .d_rows = p[0], .shape = shape}); }});
}

/// Rows of eight query heads on two key heads, of which all take part.
void add_ring_attention(std::vector<Contender>& list, const Memory& memory, DType dtype) {
  constexpr int H = 8, G = 2, D = 128, queries = H * D, keys = 2 * G * D;
  const int e = static_cast<int>(size_of(dtype));
  const std::string suffix = dtype == DType::f32 ? ", fp32" : ", bf16";
  const auto f = [](std::byte* b) { return reinterpret_cast<float*>(b); };
  std::byte* p[3] = {};
  std::int64_t n = memory.cut({4, e}, p, queries);
  AttentionShape shape{.B = 1, .T = n / queries, .H = H, .G = G, .D = D, .dtype = dtype};
  const AttentionRows all{.count = shape.T};
  const auto lse = std::make_shared<std::vector<float>>(static_cast<std::size_t>(2 * shape.T * H), 1.0f);
  const double added = (8.0 + e) * static_cast<double>(n);
  list.push_back({"merge_block" + suffix, added, "update", [=] {
                    merge_block({}, {.sum = f(p[0]),
                                     .lse = lse->data(),
                                     .block_out = p[1],
                                     .block_lse = lse->data() + shape.T * H,
                                     .queries = all,
                                     .shape = shape});
                  }});
  list.push_back({"add_block_gradient" + suffix, added, "update", [=] {
                    AddBlockGradient add{.sum = f(p[0]), .block = p[1], .B = 1, .T = shape.T, .W = queries, .rows = all};
                    add.dtype = dtype;
                    add_block_gradient({}, add);
                  }});
  n = memory.cut({e, 4}, p, queries + keys);
  shape.T = n / (queries + keys);
  float *d_q = f(p[1]), *d_kv = f(p[1]) + shape.T * queries;
  const double converted = (4.0 + e) * static_cast<double>(n);
  list.push_back({"begin_gradients" + suffix, converted, "copy",
                  [=] { begin_gradients({}, {.d_q = d_q, .d_kv = d_kv, .d_qkv = packed_qkv(p[0], shape), .shape = shape}); }});
  list.push_back({"end_gradients" + suffix, converted, "copy",
                  [=] { end_gradients({}, {.d_qkv = packed_qkv(p[0], shape), .d_q = d_q, .d_kv = d_kv, .shape = shape}); }});
}

/// Sixteen heads of 64 features, whose sinks count for nothing, so that what is scaled again and again stays.
void add_attention_sinks(std::vector<Contender>& list, const Memory& memory, DType dtype) {
  constexpr std::int64_t H = 16, D = 64;
  const int e = static_cast<int>(size_of(dtype));
  const std::string suffix = dtype == DType::f32 ? ", fp32" : ", bf16";
  std::byte* p[2] = {};
  std::int64_t n = memory.cut({e}, p, H * D);
  const auto lse = std::make_shared<std::vector<float>>(static_cast<std::size_t>(n / D), 100.0f);
  const auto small = std::make_shared<std::vector<float>>(2 * H + 64 * H);  // sinks, their gradients, partial sums
  const AttentionSinksForward forward{
      .out = p[0], .lse = lse->data(), .sinks = small->data(), .B = 1, .T = n / (H * D), .H = H, .D = D, .dtype = dtype};
  list.push_back({"attention_sinks forward" + suffix, 2.0 * e * static_cast<double>(n), "update",
                  [=] { attention_sinks_forward({}, forward), static_cast<void>(lse), static_cast<void>(small); }});
  n = memory.cut({e, e}, p, H * D);
  const AttentionSinksBackward backward{.d_sinks = small->data() + H,
                                        .d_out = p[1],
                                        .out = p[0],
                                        .lse = lse->data(),
                                        .sinks = small->data(),
                                        .B = 1,
                                        .T = n / (H * D),
                                        .H = H,
                                        .D = D,
                                        .dtype = dtype};
  const std::span<std::byte> workspace = std::as_writable_bytes(std::span(*small).subspan(2 * H));
  list.push_back({"attention_sinks backward" + suffix, 2.0 * e * static_cast<double>(n), "read",
                  [=] { attention_sinks_backward({.workspace = workspace}, backward), static_cast<void>(lse), static_cast<void>(small); }});
}

/// Rows of eight ranks for eight experts, which each have an eighth of them.
void add_expert_blocks(std::vector<Contender>& list, const Memory& memory) {
  constexpr std::int64_t N = 8, E = 8;
  std::byte* p[3] = {};
  const std::int64_t rows = memory.cut({4, 4, 4}, p, N * E) / N;
  const ExpertBlocks blocks{.N = N, .E = E, .rows = rows};
  const auto labels = std::make_shared<std::vector<std::uint32_t>>(static_cast<std::size_t>(N * blocks.labels()), 0);
  for (std::int64_t n = 0; n < N; ++n)
    for (std::int64_t e = 0; e < E; ++e)
      (*labels)[static_cast<std::size_t>(n * blocks.labels() + e)] = static_cast<std::uint32_t>(rows / E);
  const auto offsets = std::make_shared<std::vector<std::int32_t>>(E + 1);
  list.push_back({"plan_arrivals", 16.0 * static_cast<double>(N * rows), "copy", [=] {
                    plan_arrivals({}, {.offsets = offsets->data(),
                                       .order = reinterpret_cast<std::int32_t*>(p[0]),
                                       .places = reinterpret_cast<std::int32_t*>(p[1]),
                                       .weights = reinterpret_cast<float*>(p[2]),
                                       .labels = labels->data(),
                                       .blocks = blocks});
                  }});
}

void add_others(std::vector<Contender>& list, const Memory& memory, std::int32_t& flag, FixedSum& sum, const std::vector<float>& table) {
  std::byte* p[2] = {};
  auto count = [](std::int64_t n) { return static_cast<double>(n); };
  std::int64_t n = memory.cut({8, 4}, p, 1024);
  list.push_back({"fixed_accumulate", 20 * count(n), "update", [=, &flag] {
                    fixed_accumulate({}, {reinterpret_cast<std::int64_t*>(p[0]), reinterpret_cast<float*>(p[1]), n, &flag, fixed_limit});
                  }});
  list.push_back({"fixed_to_float", 12 * count(n), "triad",
                  [=] { fixed_to_float({}, reinterpret_cast<float*>(p[1]), reinterpret_cast<std::int64_t*>(p[0]), n); }});
  n = memory.cut({8, 2}, p, 1024);
  list.push_back({"fixed_to_bf16", 10 * count(n), "triad",
                  [=] { fixed_to_bf16({}, reinterpret_cast<bf16*>(p[1]), reinterpret_cast<std::int64_t*>(p[0]), n); }});
  n = memory.cut({8, 8}, p, 1024);
  list.push_back({"fixed_add", 24 * count(n), "update",
                  [=, &flag] { fixed_add({}, reinterpret_cast<std::int64_t*>(p[0]), reinterpret_cast<std::int64_t*>(p[1]), n, &flag); }});
  n = memory.cut({4}, p, 1024);
  list.push_back({"sum_of_squares", 4 * count(n), "read",
                  [=, &flag, &sum] { sum_of_squares({}, {.sum = &sum, .not_finite = &flag, .x = p[0], .n = n}); }});
  list.push_back({"sum_of_squares bf16", 4 * count(n), "read", [=, &flag, &sum] {
                    sum_of_squares({}, {.sum = &sum, .not_finite = &flag, .x = p[0], .n = 2 * n, .dtype = DType::bf16});
                  }});
  list.push_back({"rope", 8 * count(n), "update", [=, &table] {
                    rope({}, {.x = p[0], .table = table.data(), .M = n / 1024, .T = 1024, .heads = 16, .D = 64, .stride = 1024});
                  }});
  n = memory.cut({4, 2}, p, 1024);
  list.push_back({"cast fp32 to bf16", 6 * count(n), "triad", [=] { cast({}, p[1], DType::bf16, p[0], DType::f32, n); }});
  list.push_back({"normal", 4 * count(n), "copy", [=] { normal({}, reinterpret_cast<float*>(p[0]), n, 0.01f, 1, 2, 0); }});
}

void print(const std::vector<Contender>& list, const Settings& settings) {
  std::map<std::string, double> streams;
  double best = 0;
  for (const Contender& c : list) {
    if (c.peer.empty()) best = std::max(best, streams[c.name] = c.bandwidth());
  }
  Json rows = Json::array();
  for (const Contender& c : list) {
    const std::string& peer = c.peer.empty() ? c.name : c.peer;
    double of_peer = c.bandwidth() / streams[peer], of_best = c.bandwidth() / best;
    rows.push_back({{"name", c.name}, {"bytes_per_second", c.bandwidth()}, {"peer", peer}, {"of_peer", of_peer}, {"of_best", of_best}});
    if (settings.json) continue;
    fmt::print("{:36} {:7.2f} GB/s {:6.1f} % of {:34} {:6.1f} % of best\n", c.name, c.bandwidth() * 1e-9, 100 * of_peer, peer,
               100 * of_best);
  }
  if (settings.json) fmt::print("{}\n", Json{{"threads", settings.threads}, {"rows", rows}}.dump(1));
}

void run(const Settings& settings) {
  Memory memory(static_cast<std::size_t>(settings.mib) << 20);
  UpdateScalars scalars{.learning_rate = 1e-6f, .bias_correction1 = 0.5f, .bias_correction2 = 0.5f};
  Memory small(68 * 2048 * 4);  // on a page, as arenas lay weights and workspaces out
  std::vector<float> rstd(static_cast<std::size_t>(settings.mib) << 11, 1.0f), table(1024 * 64);
  std::vector<float> scales(static_cast<std::size_t>(settings.mib) << 12);
  rope_table(table.data(), 0, 1024, 64, 10000, {});
  std::int32_t flag = 0;
  FixedSum sum;
  std::vector<Contender> list;
  add_streams(list, memory);
  add_adamw(list, memory, scalars);
  add_optimizers(list, memory, scalars);
  add_quantize(list, memory);
  add_row_products(list, memory);
  add_signs(list, memory, sum);
  add_fp8(list, memory, scales.data());
  for (DType dtype : {DType::f32, DType::bf16}) {
    add_rmsnorm(list, memory, dtype, small, rstd);
    add_qk_norm_rope(list, memory, dtype, small, rstd, table);
    add_wide_qk_norm(list, memory, dtype, small, rstd);
    add_swiglu(list, memory, dtype);
    add_head_blocks(list, memory, dtype);
    add_key_parts(list, memory, dtype);
    add_ring_attention(list, memory, dtype);
    add_attention_sinks(list, memory, dtype);
  }
  add_expert_blocks(list, memory);
  add_others(list, memory, flag, sum, table);
  std::erase_if(list, [&](const Contender& c) { return !c.peer.empty() && c.name.find(settings.only) == std::string::npos; });
  for (std::int64_t turn = 0; turn < settings.repeat; ++turn) {
    for (Contender& c : list) {
      memory.refill();
      double start = seconds(settings);
      c.run();
      c.best_seconds = std::min(c.best_seconds, seconds(settings) - start);
    }
  }
  print(list, settings);
}

Settings parse(int argc, char** argv) {
  Settings s;
  for (int i = 1; i < argc; ++i) {
    std::string key = argv[i];
    if (key == "--json" || key == "--cpu-time") {
      (key == "--json" ? s.json : s.cpu_time) = true;
      continue;
    }
    if (i + 1 == argc) fail(ExitCode::usage, "{} is unknown or lacks its value: the head of this file lists the options", key);
    std::string value = argv[++i];
    if (key == "--threads")
      s.threads = std::stoll(value);
    else if (key == "--mib")
      s.mib = std::stoll(value);
    else if (key == "--repeat")
      s.repeat = std::stoll(value);
    else if (key == "--only")
      s.only = value;
    else
      fail(ExitCode::usage, "{} is unknown: the head of this file lists the options", key);
  }
  if (s.cpu_time && s.threads != 1) fail(ExitCode::usage, "--cpu-time needs --threads 1: threads that wait also use processor time");
  return s;
}

}  // namespace
}  // namespace tessera::kernels

int main(int argc, char** argv) {
  try {
    auto settings = tessera::kernels::parse(argc, argv);
    tessera::KernelRuntime runtime(static_cast<int>(settings.threads));
    tessera::kernels::run(settings);
  } catch (const std::exception& e) {
    fmt::print(stderr, "memory_bound_benchmark: {}\n", e.what());
    return 1;
  }
}
