#include "kernels/muon/muon.hpp"
#include "kernels/update/update_cuda.hpp"

namespace tessera::kernels::cuda {

void muon_momentum(const Context& context, const Update& p) { update_elements<MuonMomentumRule<false>>(context, p); }
void muon_nesterov(const Context& context, const Update& p) { update_elements<MuonMomentumRule<true>>(context, p); }
void muon(const Context& context, const Update& p) { update_elements<MuonRule>(context, p); }

}  // namespace tessera::kernels::cuda
