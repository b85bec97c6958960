#include "train/engine/machine_rate.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/parallel.hpp"
#include "memory/arena.hpp"
#include "train/engine/device.hpp"

namespace tessera {
namespace {

/// A square product of normal numbers in memory of its own.
class Product {
 public:
  Product(std::int64_t n, DType dtype, kernels::Backend backend) : n_(n), backend_(backend) {
    gemm_ = {.M = n, .N = n, .K = n, .b_transposed = true, .in = dtype, .out = dtype};
    const std::size_t matrix = round_up(static_cast<std::size_t>(n * n) * size_of(dtype), std::size_t{256});
    const std::size_t wide = round_up(static_cast<std::size_t>(n * n) * sizeof(float), std::size_t{256});
    workspace_bytes_ = kernels::gemm_workspace_bytes(gemm_, backend);
    memory_ = Arena(backend == kernels::Backend::cuda ? Tier::device : Tier::host, 3 * matrix + wide + workspace_bytes_, "tessera.rate");
    gemm_.c = memory_.data(), gemm_.a = memory_.data() + matrix, gemm_.b = memory_.data() + 2 * matrix;
    auto* values = reinterpret_cast<float*>(memory_.data() + 3 * matrix);
    workspace_ = memory_.data() + 3 * matrix + wide;
    for (std::uint64_t stream : {1, 2}) {
      kernels::normal(context(), values, n * n, 1.0f, 1, stream, 0);
      kernels::cast(context(), const_cast<void*>(stream == 1 ? gemm_.a : gemm_.b), dtype, values, DType::f32, n * n);
    }
    wait_for_device(backend_);
  }

  double seconds() const {
    const double begin = now_seconds();
    kernels::gemm(context(), gemm_);
    wait_for_device(backend_);
    return now_seconds() - begin;
  }

 private:
  kernels::Context context() const {
    kernels::Context c;
    c.workspace = {workspace_, workspace_bytes_};
    c.backend = backend_;
    return c;
  }

  std::int64_t n_;
  kernels::Backend backend_;
  kernels::Gemm gemm_;
  Arena memory_;
  std::byte* workspace_ = nullptr;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace

double measure_gemm_rate(DType dtype, kernels::Backend backend, std::int64_t largest) {
  constexpr double long_enough = 4e-3, largest_of_all = 8192;
  double rate = 0;
  for (double n = 256; n <= static_cast<double>(largest); n *= 2) {
    const Product product(static_cast<std::int64_t>(n), dtype, backend);
    double best = std::numeric_limits<double>::infinity();
    // The first brings the code in, and after a size that is too small a larger one comes: two of it say enough. Of the last fewer than six
    // may all fall into a moment in which this machine is slow. The largest is for GPUs alone, which take it faster; an idle one also needs
    // some time to reach its clocks.
    for (int run = 0, runs = 6; run < runs; ++run) {
      best = std::min(best, product.seconds());
      if (n >= largest_of_all && best < long_enough) runs = 60;
      if (n < largest_of_all && run > 0 && best < long_enough / 2) break;
    }
    rate = std::max(rate, 2 * n * n * n / best);
    if (best >= long_enough) break;
  }
  return rate;
}

double known_gemm_rate(DType dtype, kernels::Backend backend, int local_ranks) {
  static std::map<std::tuple<DType, kernels::Backend, int, int>, double> known;
  const auto [rate, fresh] = known.try_emplace({dtype, backend, local_ranks, kernels::threads()});
  if (fresh) rate->second = measure_gemm_rate(dtype, backend);
  return rate->second;
}

double measure_stream_rate(std::int64_t bytes) {
  const auto n = static_cast<std::size_t>(bytes);
  Arena memory(Tier::host, 2 * n, "tessera.rate");
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 6; ++i) {
    const double begin = now_seconds();
    kernels::copy({}, memory.data(), memory.data() + n, n);
    best = std::min(best, now_seconds() - begin);
  }
  return 2 * static_cast<double>(bytes) / best;
}

MachineProfile machine_of_run(const Deck& deck) {
  MachineProfile machine = require_machine(deck.run.machine);
  if (machine.device != word_of(deck.run.device))
    fail(ExitCode::usage,
         "run.machine \"{}\": its ranks compute on \"{}\", but this run's ranks on \"{}\"; name a profile of such a machine",
         deck.run.machine, machine.device, word_of(deck.run.device));
  return machine;
}

bool Yardstick::remeasure(double mfu) {
  if (mfu <= 1 || left_ == 0) return false;
  --left_;
  const double found = again_();
  if (found <= rate_) return false;
  rate_ = found;
  return true;
}

}  // namespace tessera
