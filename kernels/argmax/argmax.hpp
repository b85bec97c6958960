// The place of the largest of some numbers: the likeliest token of its logits, found where they are.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

struct Argmax {
  std::int32_t* index = nullptr;  ///< (1) of the first of the largest; -1 where any is NaN or none is above -infinity
  const float* x = nullptr;       ///< (n)
  std::int64_t n = 0;             ///< up to 2^30
};
TESSERA_OP(argmax, (const Context& context, const Argmax& arguments), (context, arguments))

}  // namespace tessera::kernels
