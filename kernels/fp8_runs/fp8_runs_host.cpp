#include "kernels/fp8_runs/fp8_runs.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/fp8/scale.hpp"
#include "kernels/fp8_runs/fp8_runs_code.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector/float8.hpp"

namespace tessera::kernels::host {
namespace {

constexpr std::int64_t run_grain = 1 << 14;

void copy_run(void* to, const void* from, std::int64_t elements) {
  parallel_ranges(elements, run_grain, [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(static_cast<bf16*>(to) + begin, static_cast<const bf16*>(from) + begin,
                static_cast<std::size_t>(end - begin) * sizeof(bf16));
  });
}
void decode_run(bf16* x, const std::byte* bytes, const Fp8Run& run) {
  float scale;
  std::memcpy(&scale, bytes + scale_byte(run), sizeof scale);
  const auto* codes = reinterpret_cast<const e4m3*>(bytes + run.byte);
  parallel_ranges(run.elements, run_grain, [&](std::int64_t begin, std::int64_t end) {
    for_vectors(begin, end, [&](std::int64_t i, auto count) { store(x + i, load(codes + i, count) * splat(scale), count); });
  });
}

}  // namespace

void find_magnitude(const Context&, float* largest, const bf16* x, std::int64_t n) {
  const std::atomic_ref<std::int32_t> all(*reinterpret_cast<std::int32_t*>(largest));  // of magnitudes bits have the order of values
  parallel_ranges(n, run_grain, [&](std::int64_t begin, std::int64_t end) {
    i32x16 most(0);
    for_vectors(begin, end, [&](std::int64_t i, auto count) {
      const i32x16 magnitude = bits_as<i32x16>(load(x + i, count)) & 0x7fffffff;
      most = select(magnitude > most, magnitude, most);
    });
    std::int32_t mine = 0;
    for (int lane = 0; lane < lanes; ++lane) mine = std::max(mine, most[lane]);
    for (std::int32_t known = all; known < mine && !all.compare_exchange_weak(known, mine);) {
    }
  });
}

void fp8_multipliers(const Context&, float* magnitudes, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) magnitudes[i] = fp8_scale(magnitudes[i], e4m3::largest(), false).multiplier;
}

void encode_fp8_run(const Context& context, const EncodeFp8Run& p) {
  if (p.run.coded)
    fp8_runs::for_each_shape(p, [&](const Fp8Quantize& q) { host::fp8_quantize(context, q); });
  else
    copy_run(p.bytes + p.run.byte, p.x + p.run.element, p.run.elements);
}

void decode_fp8_runs(const Context&, const DecodeFp8Runs& p) {
  for (const Fp8Run& run : p.runs)
    run.coded ? decode_run(p.x + run.element, p.bytes, run) : copy_run(p.x + run.element, p.bytes + run.byte, run.elements);
}

}  // namespace tessera::kernels::host
