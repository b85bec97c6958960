#include "kernels/adam8bit/adam8bit.hpp"
#include "kernels/update/blocks_cuda.hpp"

namespace tessera::kernels::cuda {

void adam8bit(const Context& context, const Update& p) { update_in_blocks<AdamwRule>(context, p); }

}  // namespace tessera::kernels::cuda
