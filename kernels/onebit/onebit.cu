#include "kernels/onebit/onebit.hpp"
#include "kernels/update/update_cuda.hpp"

namespace tessera::kernels::cuda {

void onebit_warmup(const Context& context, const Update& p) { update_elements<OnebitWarmupRule>(context, p); }
void onebit_momentum(const Context& context, const Update& p) { update_elements<OnebitMomentumRule>(context, p); }
void onebit_frozen(const Context& context, const Update& p) { update_elements<OnebitFrozenRule>(context, p); }

}  // namespace tessera::kernels::cuda
