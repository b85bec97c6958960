#include "kernels/elementwise/elementwise_sizes.hpp"

namespace tessera::kernels::cuda {

std::size_t column_sums_workspace_bytes(const ColumnSums& p) { return column_sum_blocks(p.M).bytes(p.N); }

}  // namespace tessera::kernels::cuda
