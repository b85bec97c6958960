#include "kernels/adam/adam.hpp"
#include "kernels/update/update_host.hpp"

namespace tessera::kernels::host {

void adam(const Context&, const Update& p) { update_elements<AdamRule>("adam", p); }

}  // namespace tessera::kernels::host
