// QK-norm of the whole width (kernels/wide_qk_norm), of rows as the product of this rank has made them: whole heads of queries, and keys or
// a part of their features. Tensor-parallel ranks gather what each has summed.
#pragma once
#include "model/record/recorder.hpp"

namespace tessera {

/// out and x (M, own_qkv_width), sums (tp,M,2) fp32; the weights are those of this rank's features.
void wide_qk_norm(Recorder& r, Value out, Value sums, Value x, const std::string& q_norm, const std::string& k_norm);
/// In place on d.
void wide_qk_norm_backward(Recorder& r, Value d, Value x, Value sums, const std::string& q_norm, const std::string& k_norm);

}  // namespace tessera
