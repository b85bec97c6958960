#include "kernels/muon/muon.hpp"
#include "kernels/update/update_host.hpp"

namespace tessera::kernels::host {

void muon_momentum(const Context&, const Update& p) { update_elements<MuonMomentumRule<false>>("muon_momentum", p); }
void muon_nesterov(const Context&, const Update& p) { update_elements<MuonMomentumRule<true>>("muon_nesterov", p); }
void muon(const Context&, const Update& p) { update_elements<MuonRule>("muon", p); }

}  // namespace tessera::kernels::host
