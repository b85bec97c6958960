// AdamW with both moments in 8 bits (Dettmers et al., arXiv:2110.02861), which dynamic codes and scales of blocks of 256 make enough.
#pragma once
#include "kernels/adamw/adamw.hpp"

namespace tessera::kernels {

/// AdamwRule on moments that are decoded before it and encoded after it. State: m in signed blocks, v in unsigned ones; the first element
/// begins one.
TESSERA_OP(adam8bit, (const Context& context, const Update& arguments), (context, arguments))

}  // namespace tessera::kernels
