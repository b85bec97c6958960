#include "kernels/adam/adam.hpp"
#include "kernels/update/update_cuda.hpp"

namespace tessera::kernels::cuda {

void adam(const Context& context, const Update& p) { update_elements<AdamRule>(context, p); }

}  // namespace tessera::kernels::cuda
