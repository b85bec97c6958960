// A bias of bf16 or fp16 of a product into fp32, which cuBLASLt's epilogues do not add.
#pragma once
#include "kernels/gemm/gemm.hpp"

namespace tessera::kernels::cuda {

/// Adds g.bias to each row of g.c, which is fp32.
void add_wide_bias(const Context& context, const Gemm& g);

}  // namespace tessera::kernels::cuda
