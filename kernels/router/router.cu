// A thread has a token, and runs the host's very lines: the logits are small (4 E bytes a token) beside the rows that experts take, and
// each thread's stay in the first-level cache. Not yet measured.
#include "kernels/cuda/vector.hpp"
#include "kernels/router/router_code.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

constexpr int token_threads = 64;

__device__ std::int64_t token() { return static_cast<std::int64_t>(blockIdx.x) * token_threads + threadIdx.x; }
unsigned blocks_of(const RouterShape& s) {
  TESSERA_CUDA_REQUIRE(router::is_whole(s));
  return static_cast<unsigned>(ceil_div(s.M, token_threads));
}

template <bool by_sigmoid>
__global__ void __launch_bounds__(token_threads) forward_kernel(RouterForward p) {
  if (token() < p.shape.M) router::forward<by_sigmoid>(p, token());
}

template <bool by_sigmoid>
__global__ void __launch_bounds__(token_threads) losses_kernel(RouterLosses p) {
  if (token() < p.shape.M) router::losses<by_sigmoid>(p, token());
}

template <class T>
struct Rounds {
  __device__ T operator()(float x) const { return rounded<T>(x); }
};

template <class T, bool by_sigmoid>
__global__ void __launch_bounds__(token_threads) backward_kernel(RouterBackward p) {
  if (token() < p.shape.M) router::backward<by_sigmoid, T>(p, token(), Rounds<T>{});
}

/// One thread: a few hundred integers, bound by the launch.
__global__ void add_totals_kernel(AddRouterTotals p) { router::add_totals(p); }

/// A block has a layer, a thread some of its experts. Each adds up the layer's loads for itself: a few hundred integers that lie in a
/// cache.
__global__ void __launch_bounds__(token_threads) balance_kernel(BalanceRouters p) {
  for (std::int64_t e = threadIdx.x; e < p.E; e += token_threads) router::balance(p, blockIdx.x, e);
}

}  // namespace

void router_forward(const Context& context, const RouterForward& p) {
  if (p.shape.M == 0) return;
  router::with_scores(
      p.shape, [&](auto by_sigmoid) { launch(stream_of(context), blocks_of(p.shape), token_threads, 0, forward_kernel<by_sigmoid>, p); });
}

void router_losses(const Context& context, const RouterLosses& p) {
  if (p.shape.M == 0) return;
  router::with_scores(
      p.shape, [&](auto by_sigmoid) { launch(stream_of(context), blocks_of(p.shape), token_threads, 0, losses_kernel<by_sigmoid>, p); });
}

void router_backward(const Context& context, const RouterBackward& p) {
  if (p.shape.M == 0) return;
  with_float_type(p.dtype, [&](auto type) {
    router::with_scores(p.shape, [&](auto by_sigmoid) {
      launch(stream_of(context), blocks_of(p.shape), token_threads, 0, backward_kernel<decltype(type), by_sigmoid>, p);
    });
  });
}

void add_router_totals(const Context& context, const AddRouterTotals& p) { launch(stream_of(context), 1, 1, 0, add_totals_kernel, p); }

void balance_routers(const Context& context, const BalanceRouters& p) {
  TESSERA_CUDA_REQUIRE(p.E > 0 && p.stride >= p.E);
  if (p.layers > 0) launch(stream_of(context), static_cast<unsigned>(p.layers), token_threads, 0, balance_kernel, p);
}

}  // namespace tessera::kernels::cuda
