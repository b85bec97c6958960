// The norm at the head of a segment, by the indexes of its operands.
#pragma once
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"
#include "model/segment.hpp"

namespace tessera::norm {

struct Forward {
  int out, rstd, x, weight;
};
/// out = norm(x).
inline void forward(const kernels::Context& context, const SegmentRun& r, const Forward& o) {
  const ModelShape& s = r.shape;
  rmsnorm_forward(context, {.out = r.get(o.out),
                            .rstd = r.get<float>(o.rstd),
                            .x = r.get(o.x),
                            .weight = r.get(o.weight),
                            .rows = s.tokens(),
                            .C = s.C,
                            .eps = s.norm_eps,
                            .dtype = s.dtype});
}

struct Backward {
  int d_x, d_weight, d_out, x, weight, rstd;
  bool residual;  ///< d_x holds the residual's gradient, which the norm's joins
};
/// d_x (+)= gradient through the norm; d_weight starts or goes on with its sum.
inline void backward(const kernels::Context& context, const SegmentRun& r, const Backward& o) {
  const ModelShape& s = r.shape;
  if (!r.adds(o.d_weight)) fill_zero(context, r.get(o.d_weight), static_cast<std::size_t>(s.C) * sizeof(float));
  rmsnorm_backward(context, {.d_x = r.get(o.d_x),
                             .d_weight = r.get<float>(o.d_weight),
                             .d_out = r.get(o.d_out),
                             .d_residual = o.residual ? r.get(o.d_x) : nullptr,
                             .x = r.get(o.x),
                             .weight = r.get(o.weight),
                             .rstd = r.get<float>(o.rstd),
                             .rows = s.tokens(),
                             .C = s.C,
                             .dtype = s.dtype});
}

inline std::size_t backward_workspace_bytes(const ModelShape& s) {
  return kernels::rmsnorm_backward_workspace_bytes({.rows = s.tokens(), .C = s.C, .dtype = s.dtype}, s.backend);
}

}  // namespace tessera::norm
