// Host threads for kernels: Kokkos' OpenMP space behind a light header, so that a kernel file compiles in a second.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace tessera::kernels {

/// A borrowed callable (begin, end) -> void.
class RangeFunction {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, RangeFunction>) RangeFunction(F&& f)  // NOLINT: implicit on purpose
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* o, std::int64_t b, std::int64_t e) { (*static_cast<std::remove_reference_t<F>*>(o))(b, e); }) {}
  void operator()(std::int64_t begin, std::int64_t end) const { call_(object_, begin, end); }

 private:
  void* object_;
  void (*call_)(void*, std::int64_t, std::int64_t);
};

/// Calls f(begin, end) on disjoint pieces that cover [0, n), each a multiple of `grain` long (the last may be shorter), over the threads of
/// Kokkos::DefaultHostExecutionSpace. Pieces are disjoint work: a kernel may only split a dim that it does not sum over.
/// Small n (n <= grain) runs inline. Safe before Kokkos::initialize and inside a parallel region: then it runs inline.
void parallel_ranges(std::int64_t n, std::int64_t grain, RangeFunction f);
/// Calls f(i, i + 1) for each i, handed out dynamically: for uneven work such as causal attention tiles. Which thread runs a piece must not
/// matter.
void parallel_dynamic(std::int64_t n, RangeFunction f);
/// Threads that parallel_ranges would use.
int threads();
/// What threads() says where Kokkos is not running (1 until this is called): workspace sizes depend on it, and a plan must come out as the
/// run will have it.
void plan_for_threads(int threads);

/// Calls f(worker, i) for each i in [0, n), handed out dynamically; worker < threads(), and no two calls with the same worker overlap, so
/// it may index temporary memory. Which worker runs a piece must not matter.
template <class F>
void parallel_workers(std::int64_t n, F&& f) {
  std::atomic<std::int64_t> next{0};
  parallel_ranges(threads(), 1, [&](std::int64_t worker, std::int64_t) {
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) f(worker, i);
  });
}

}  // namespace tessera::kernels
