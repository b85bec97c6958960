// What stands between the products of a feed-forward layer.
#pragma once
#include "model/record/recorder.hpp"

namespace tessera {

/// out (M,F) = act(gate) * up of gate_up (M,2F), with the model's activation.
void swiglu(Recorder& r, Value out, Value gate_up, std::int64_t M, std::int64_t F);
/// d_gate_up may be gate_up. `out`, where it is wanted, is forward's once more, and may be d_out.
void swiglu_backward(Recorder& r, Value d_gate_up, Value d_out, Value gate_up, std::int64_t M, std::int64_t F, Value out = {});

/// out (M,F) of what the first product of a feed-forward block makes (M, up_width), which has a gate or none, for the block `w`:
/// "layers.3.mlp.".
void activate(Recorder& r, Value out, Value up, std::int64_t M, std::int64_t F, const std::string& w);
/// As swiglu_backward.
void activate_backward(Recorder& r, Value d_up, Value d_out, Value up, std::int64_t M, std::int64_t F, Value out, const std::string& w);

}  // namespace tessera
