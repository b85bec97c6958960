#include "model/calls/norms.hpp"

#include "kernels/layer_norm/layer_norm.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"
#include "model/calls/parts.hpp"

namespace tessera {
namespace {

using enum Access;

kernels::RmsnormBackward rmsnorm_shape(const ModelShape& s) {
  return {.rows = s.rows(), .C = s.C, .dtype = s.dtype, .offset = s.block.norm_offset};
}

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
                                         .eps = s.block.norm_eps,
                                         .dtype = s.dtype,
                                         .offset = s.block.norm_offset,
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

kernels::LayerNormBackward layer_norm_shape(const ModelShape& s) { return {.rows = s.rows(), .C = s.C, .dtype = s.dtype}; }

void layer_norm(Recorder& r, Value out, Value rows, Value x, const std::string& w, Value residual) {
  const ModelShape& s = r.s;
  const Value weight = r.weight(w), bias = s.block.norm_bias ? r.weight(w + "_bias") : Value{};
  r.call({.name = "layer_norm " + r.name_of(out),
          .touches = with_reads({{out, write}, {rows, write}, {x, read}, {weight, read}}, {bias, residual}),
          .run = [=, s = s](const At& at) {
            auto* rstd = at.get<float>(rows);
            layer_norm_forward(at.context, {.out = at.get(out),
                                            .mean = rstd + s.rows(),
                                            .rstd = rstd,
                                            .x = at.get(x),
                                            .weight = at.get(weight),
                                            .bias = at.get(bias),
                                            .rows = s.rows(),
                                            .C = s.C,
                                            .eps = s.block.norm_eps,
                                            .dtype = s.dtype,
                                            .residual = at.get(residual)});
          }});
}

void layer_norm_backward(Recorder& r, Value d_x, Value d_out, Value x, const std::string& w, Value rows, bool residual) {
  const ModelShape& s = r.s;
  const Value weight = r.weight(w), d_weight = r.gradient(w), d_bias = s.block.norm_bias ? r.gradient(w + "_bias") : Value{};
  std::vector<Touch> touches = {
      {d_x, residual ? Access::add : write}, {d_out, read}, {x, read}, {weight, read}, {rows, read}, {d_weight, Access::add}};
  if (d_bias) touches.push_back({d_bias, Access::add});
  r.call({.name = "layer_norm_backward " + w,
          .touches = std::move(touches),
          .workspace = kernels::layer_norm_backward_workspace_bytes(layer_norm_shape(s), s.backend),
          .run = [=, s = s](const At& at) {
            auto p = layer_norm_shape(s);
            p.d_x = at.get(d_x), p.d_out = at.get(d_out), p.d_residual = residual ? at.get(d_x) : nullptr;
            p.x = at.get(x), p.weight = at.get(weight), p.rstd = at.get<float>(rows), p.mean = p.rstd + s.rows();
            p.d_weight = started(at, d_weight, s.C), p.d_bias = d_bias ? started(at, d_bias, s.C) : nullptr;
            kernels::layer_norm_backward(at.context, p);
          }});
}

}  // namespace

Value norm_rows(Recorder& r, const char* name) { return r.value(name, {(r.s.block.layer_norm ? 2 : 1) * r.s.rows()}, DType::f32); }

void norm(Recorder& r, Value out, Value rows, Value x, const std::string& w, Value residual) {
  (r.s.block.layer_norm ? layer_norm : rmsnorm)(r, out, rows, x, w, residual);
}

void norm_backward(Recorder& r, Value d_x, Value d_out, Value x, const std::string& w, Value rows, bool residual) {
  (r.s.block.layer_norm ? layer_norm_backward : rmsnorm_backward)(r, d_x, d_out, x, w, rows, residual);
}

}  // namespace tessera
