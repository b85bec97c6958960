#include "kernels/adamw/adamw.hpp"
#include "kernels/update/update_cuda.hpp"

namespace tessera::kernels::cuda {

void adamw(const Context& context, const Update& p) { update_elements<AdamwRule>(context, p); }

}  // namespace tessera::kernels::cuda
