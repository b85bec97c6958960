#include "kernels/adamw/adamw.hpp"
#include "kernels/update/update_host.hpp"

namespace tessera::kernels::host {

void adamw(const Context&, const Update& p) { update_elements<AdamwRule>("adamw", p); }

}  // namespace tessera::kernels::host
