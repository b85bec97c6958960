#include "kernels/lamb/lamb.hpp"
#include "kernels/update/update_host.hpp"

namespace tessera::kernels::host {

void lamb_moments(const Context&, const Update& p) { update_elements<LambMomentsRule>("lamb_moments", p); }
void lamb(const Context&, const Update& p) { update_elements<LambRule>("lamb", p); }

}  // namespace tessera::kernels::host
