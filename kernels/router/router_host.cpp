// Bound by the exponentials: a few passes over the logits of a token, which stay in the first-level cache.
#include "base/check.hpp"
#include "kernels/parallel.hpp"
#include "kernels/router/router_code.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {

void check(const RouterShape& s) {
  TESSERA_REQUIRE(router::is_whole(s), "a router of {} experts in {} groups, {} a token of {} groups, {} tokens", s.E, s.groups, s.k,
                  s.top_groups, s.M);
}

std::int64_t tokens_per_piece(const RouterShape& s) { return std::max<std::int64_t>(1, 4096 / s.E); }

}  // namespace

void router_forward(const Context&, const RouterForward& p) {
  check(p.shape);
  router::with_scores(p.shape, [&](auto by_sigmoid) {
    parallel_ranges(p.shape.M, tokens_per_piece(p.shape), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t m = begin; m < end; ++m) router::forward<by_sigmoid>(p, m);
    });
  });
}

void router_losses(const Context&, const RouterLosses& p) {
  check(p.shape);
  router::with_scores(p.shape, [&](auto by_sigmoid) {
    parallel_ranges(p.shape.M, tokens_per_piece(p.shape), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t m = begin; m < end; ++m) router::losses<by_sigmoid>(p, m);
    });
  });
}

void router_backward(const Context&, const RouterBackward& p) {
  check(p.shape);
  with_float_type(p.dtype, "router_backward", [&](auto type) {
    using T = decltype(type);
    router::with_scores(p.shape, [&](auto by_sigmoid) {
      parallel_ranges(p.shape.M, tokens_per_piece(p.shape), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t m = begin; m < end; ++m) router::backward<by_sigmoid, T>(p, m, [](float x) { return T(x); });
      });
    });
  });
}

void add_router_totals(const Context&, const AddRouterTotals& p) { router::add_totals(p); }

void balance_routers(const Context&, const BalanceRouters& p) {
  TESSERA_REQUIRE(p.E > 0 && p.stride >= p.E, "biases of {} experts in rows of {}", p.E, p.stride);
  for (std::int64_t layer = 0; layer < p.layers; ++layer)
    for (std::int64_t e = 0; e < p.E; ++e) router::balance(p, layer, e);
}

}  // namespace tessera::kernels::host
