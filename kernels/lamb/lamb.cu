#include "kernels/lamb/lamb.hpp"
#include "kernels/update/update_cuda.hpp"

namespace tessera::kernels::cuda {

void lamb_moments(const Context& context, const Update& p) { update_elements<LambMomentsRule>(context, p); }
void lamb(const Context& context, const Update& p) { update_elements<LambRule>(context, p); }

}  // namespace tessera::kernels::cuda
