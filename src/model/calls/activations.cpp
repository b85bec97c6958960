#include "model/calls/activations.hpp"

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

}  // namespace tessera
