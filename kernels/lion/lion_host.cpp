#include "kernels/lion/lion.hpp"
#include "kernels/update/update_host.hpp"

namespace tessera::kernels::host {

void lion(const Context&, const Update& p) { update_elements<LionRule>("lion", p); }

}  // namespace tessera::kernels::host
