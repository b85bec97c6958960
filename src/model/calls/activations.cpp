#include "model/calls/activations.hpp"

#include "kernels/activation/activation.hpp"
#include "kernels/swiglu/swiglu.hpp"

namespace tessera {
namespace {

using enum Access;

}  // namespace

void swiglu(Recorder& r, Value out, Value gate_up, std::int64_t M, std::int64_t F) {
  const ModelShape& s = r.s;
  r.call({.name = "swiglu", .touches = {{out, write}, {gate_up, read}}, .run = [=, s = s](const At& at) {
            swiglu_forward(at.context, {.out = at.get(out),
                                        .gate_up = at.get(gate_up),
                                        .M = M,
                                        .F = F,
                                        .dtype = s.dtype,
                                        .activation = s.activation,
                                        .limit = s.gate_limit});
          }});
}

void swiglu_backward(Recorder& r, Value d_gate_up, Value d_out, Value gate_up, std::int64_t M, std::int64_t F, Value out) {
  const ModelShape& s = r.s;
  std::vector<Touch> touches = {{gate_up, read}, {d_gate_up, write}, {d_out, read}};
  if (out) touches.push_back({out, write});
  r.call({.name = "swiglu_backward", .touches = std::move(touches), .run = [=, s = s](const At& at) {
            kernels::swiglu_backward(at.context, {.d_gate_up = at.get(d_gate_up),
                                                  .d_out = at.get(d_out),
                                                  .gate_up = at.get(gate_up),
                                                  .M = M,
                                                  .F = F,
                                                  .dtype = s.dtype,
                                                  .activation = s.activation,
                                                  .limit = s.gate_limit,
                                                  .out = at.get(out)});
          }});
}

void activate(Recorder& r, Value out, Value up, std::int64_t M, std::int64_t F) {
  const ModelShape& s = r.s;
  if (s.gated) return swiglu(r, out, up, M, F);
  r.call({.name = "activation", .touches = {{out, write}, {up, read}}, .run = [=, s = s](const At& at) {
            kernels::activation_forward(at.context,
                                        {.out = at.get(out), .x = at.get(up), .M = M, .F = F, .dtype = s.dtype, .activation = s.plain});
          }});
}

void activate_backward(Recorder& r, Value d_up, Value d_out, Value up, std::int64_t M, std::int64_t F, Value out) {
  const ModelShape& s = r.s;
  if (s.gated) return swiglu_backward(r, d_up, d_out, up, M, F, out);
  r.call(
      {.name = "activation_backward", .touches = {{up, read}, {d_up, write}, {d_out, read}, {out, write}}, .run = [=, s = s](const At& at) {
         kernels::activation_backward(at.context, {.d_x = at.get(d_up),
                                                   .d_out = at.get(d_out),
                                                   .x = at.get(up),
                                                   .M = M,
                                                   .F = F,
                                                   .dtype = s.dtype,
                                                   .activation = s.plain,
                                                   .out = at.get(out)});
       }});
}

}  // namespace tessera
