// The grouped products in bf16 and fp16 on Hopper's asynchronous products. grouped_gemm.cu chooses.
#pragma once
#include "kernels/grouped_gemm/grouped_gemm.hpp"

namespace tessera::kernels::cuda {

/// Whether these are for such a product: on compute capability 9.0, with all that is copied 16 bytes at a time on 16 bytes. That depends on
/// shapes, strides and where matrices begin, not on how many rows an expert has.
bool takes_warpgroup(const GroupedGemm& p);
bool takes_warpgroup(const GroupedWeightGradient& p);

void grouped_gemm_warpgroup(const Context& context, const GroupedGemm& p);
void grouped_weight_gradient_warpgroup(const Context& context, const GroupedWeightGradient& p);

}  // namespace tessera::kernels::cuda
