#include "kernels/lion/lion.hpp"
#include "kernels/update/update_cuda.hpp"

namespace tessera::kernels::cuda {

void lion(const Context& context, const Update& p) { update_elements<LionRule>(context, p); }

}  // namespace tessera::kernels::cuda
