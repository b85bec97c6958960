#include "kernels/sgd/sgd.hpp"
#include "kernels/update/update_host.hpp"

namespace tessera::kernels::host {

void sgd(const Context&, const Update& p) { update_elements<SgdRule<SgdKind::plain>>("sgd", p); }
void sgd_momentum(const Context&, const Update& p) { update_elements<SgdRule<SgdKind::momentum>>("sgd_momentum", p); }
void sgd_nesterov(const Context&, const Update& p) { update_elements<SgdRule<SgdKind::nesterov>>("sgd_nesterov", p); }

}  // namespace tessera::kernels::host
