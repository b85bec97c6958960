#include "model/calls/norms.hpp"

#include "kernels/rmsnorm/rmsnorm.hpp"
#include "model/calls/parts.hpp"

namespace tessera {
namespace {

using enum Access;

kernels::RmsnormBackward rmsnorm_shape(const ModelShape& s) {
  return {.rows = s.rows(), .C = s.C, .dtype = s.dtype, .offset = s.norm_offset};
}

}  // namespace

void rmsnorm(Recorder& r, Value out, Value rstd, Value x, const std::string& w, Value residual) {
  const ModelShape& s = r.s;
  const Value weight = r.weight(w);
  r.call({.name = "rmsnorm " + r.name_of(out),
          .touches = with_reads({{out, write}, {rstd, write}, {x, read}, {weight, read}}, {residual}),
          .run = [=, s = s](const At& at) {
            rmsnorm_forward(at.context, {.out = at.get(out),
                                         .rstd = at.get<float>(rstd),
                                         .x = at.get(x),
                                         .weight = at.get(weight),
                                         .rows = s.rows(),
                                         .C = s.C,
                                         .eps = s.norm_eps,
                                         .dtype = s.dtype,
                                         .offset = s.norm_offset,
                                         .residual = at.get(residual)});
          }});
}

void rmsnorm_backward(Recorder& r, Value d_x, Value d_out, Value x, const std::string& w, Value rstd, bool residual) {
  const ModelShape& s = r.s;
  const Value weight = r.weight(w), d_weight = r.gradient(w);
  r.call(
      {.name = "rmsnorm_backward " + w,
       .touches = {{d_x, residual ? Access::add : write}, {d_out, read}, {x, read}, {weight, read}, {rstd, read}, {d_weight, Access::add}},
       .workspace = kernels::rmsnorm_backward_workspace_bytes(rmsnorm_shape(s), s.backend),
       .run = [=, s = s](const At& at) {
         auto norm = rmsnorm_shape(s);
         norm.d_x = at.get(d_x), norm.d_out = at.get(d_out), norm.d_residual = residual ? at.get(d_x) : nullptr;
         norm.x = at.get(x), norm.weight = at.get(weight), norm.rstd = at.get<float>(rstd);
         norm.d_weight = started(at, d_weight, s.C);
         kernels::rmsnorm_backward(at.context, norm);
       }});
}

}  // namespace tessera
