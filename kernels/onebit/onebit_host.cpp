#include "kernels/onebit/onebit.hpp"
#include "kernels/update/update_host.hpp"

namespace tessera::kernels::host {

void onebit_warmup(const Context&, const Update& p) { update_elements<OnebitWarmupRule>("onebit_warmup", p); }
void onebit_momentum(const Context&, const Update& p) { update_elements<OnebitMomentumRule>("onebit_momentum", p); }
void onebit_frozen(const Context&, const Update& p) { update_elements<OnebitFrozenRule>("onebit_frozen", p); }

}  // namespace tessera::kernels::host
