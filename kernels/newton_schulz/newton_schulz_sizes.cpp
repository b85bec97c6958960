#include "kernels/newton_schulz/iteration.hpp"

namespace tessera::kernels::cuda {

std::size_t newton_schulz_workspace_bytes(const NewtonSchulz& p) { return newton_schulz_detail::places_of(p, Backend::cuda).end; }

}  // namespace tessera::kernels::cuda
