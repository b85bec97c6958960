#include "kernels/adam8bit/adam8bit.hpp"
#include "kernels/update/blocks_host.hpp"

namespace tessera::kernels::host {

void adam8bit(const Context&, const Update& p) { update_in_blocks<AdamwRule>("adam8bit", p); }

}  // namespace tessera::kernels::host
