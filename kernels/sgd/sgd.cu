#include "kernels/sgd/sgd.hpp"
#include "kernels/update/update_cuda.hpp"

namespace tessera::kernels::cuda {

void sgd(const Context& context, const Update& p) { update_elements<SgdRule<SgdKind::plain>>(context, p); }
void sgd_momentum(const Context& context, const Update& p) { update_elements<SgdRule<SgdKind::momentum>>(context, p); }
void sgd_nesterov(const Context& context, const Update& p) { update_elements<SgdRule<SgdKind::nesterov>>(context, p); }

}  // namespace tessera::kernels::cuda
