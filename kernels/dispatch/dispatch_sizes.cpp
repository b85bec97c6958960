#include "kernels/dispatch/dispatch.hpp"
#include "kernels/embedding/sort_sizes.hpp"

namespace tessera::kernels::cuda {

std::size_t plan_dispatch_workspace_bytes(const PlanDispatch& p) {
  return sort_sizes::bytes(p.M * p.k) + static_cast<std::size_t>(p.E) * sizeof(std::int32_t);
}

}  // namespace tessera::kernels::cuda
