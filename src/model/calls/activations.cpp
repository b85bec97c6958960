#include "model/calls/activations.hpp"

#include "kernels/activation/activation.hpp"
#include "kernels/swiglu/swiglu.hpp"
#include "model/calls/parts.hpp"

namespace tessera {
namespace {

using enum Access;

bool has_alphas(const ModelShape& s) { return s.block.plain == kernels::PlainActivation::xielu; }
/// Behind which the other lies.
constexpr const char* first_alpha = "alpha_p";

}  // namespace

void swiglu(Recorder& r, Value out, Value gate_up, std::int64_t M, std::int64_t F) {
  const ModelShape& s = r.s;
  r.call({.name = "swiglu", .touches = {{out, write}, {gate_up, read}}, .run = [=, s = s](const At& at) {
            swiglu_forward(at.context, {.out = at.get(out),
                                        .gate_up = at.get(gate_up),
                                        .M = M,
                                        .F = F,
                                        .dtype = s.dtype,
                                        .activation = s.block.activation,
                                        .limit = s.block.gate_limit});
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
                                                  .activation = s.block.activation,
                                                  .limit = s.block.gate_limit,
                                                  .out = at.get(out)});
          }});
}

void activate(Recorder& r, Value out, Value up, std::int64_t M, std::int64_t F, const std::string& w) {
  const ModelShape& s = r.s;
  if (s.block.gated) return swiglu(r, out, up, M, F);
  const Value alphas = has_alphas(s) ? r.weight(w + first_alpha) : Value{};
  r.call({.name = "activation", .touches = with_reads({{out, write}, {up, read}}, {alphas}), .run = [=, s = s](const At& at) {
            kernels::activation_forward(at.context, {.out = at.get(out),
                                                     .x = at.get(up),
                                                     .alphas = at.get(alphas),
                                                     .M = M,
                                                     .F = F,
                                                     .dtype = s.dtype,
                                                     .activation = s.block.plain});
          }});
}

void activate_backward(Recorder& r, Value d_up, Value d_out, Value up, std::int64_t M, std::int64_t F, Value out, const std::string& w) {
  const ModelShape& s = r.s;
  if (s.block.gated) return swiglu_backward(r, d_up, d_out, up, M, F, out);
  kernels::ActivationBackward sizes{.M = M, .F = F, .dtype = s.dtype, .activation = s.block.plain};
  Value alphas, d_alphas;
  std::vector<Touch> touches = {{up, read}, {d_up, write}, {d_out, read}, {out, write}};
  if (has_alphas(s)) {
    alphas = r.weight(w + first_alpha), d_alphas = r.gradient(w + first_alpha);
    touches.push_back({alphas, read}), touches.push_back({d_alphas, Access::add});
  }
  r.call({.name = "activation_backward",
          .touches = std::move(touches),
          .workspace = kernels::activation_backward_workspace_bytes(sizes, s.backend),
          .run = [=](const At& at) {
            auto p = sizes;
            p.d_x = at.get(d_up), p.d_out = at.get(d_out), p.x = at.get(up), p.out = at.get(out);
            if (alphas) p.alphas = at.get(alphas), p.d_alphas = started(at, d_alphas, 2);
            kernels::activation_backward(at.context, p);
          }});
}

}  // namespace tessera
