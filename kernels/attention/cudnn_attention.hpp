// Attention through cuDNN's graph API, by cudnn-frontend. Only in a build with CUDA; cuDNN itself is opened where it runs, if it is there.
#pragma once
#include <span>
#include <string>

#include "kernels/attention/attention_sizes.hpp"

namespace tessera::kernels::cuda {

/// Names of the tensors in cuDNN's graphs (unique ids); those that the frontend adds count from 0.
struct CudnnTensor {
  enum : std::int64_t { q = 1001, k, v, out, lse, d_out, d_q, d_k, d_v };
};

/// Why cuDNN cannot run this pass on this GPU: no library, a shape or type that it does not have, too much workspace. Empty where it can.
/// The first call for a shape builds its plan, which takes seconds.
std::string why_not_cudnn(const AttentionShape& shape, AttentionPass pass);
/// The same by cuDNN's heuristics for a GPU that is described and need not be there: `properties` is the JSON text of
/// CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION. Nothing is built or kept.
std::string why_not_cudnn_on(std::string_view properties, const AttentionShape& shape, AttentionPass pass);

/// "cuDNN 9.19.0"; empty where there is none.
std::string cudnn_name();

/// Throw Error(environment) with the reason where why_not_cudnn() has one.
void cudnn_attention_forward(const Context& context, const AttentionForward& arguments);
void cudnn_attention_backward(const Context& context, const AttentionBackward& arguments);

}  // namespace tessera::kernels::cuda
