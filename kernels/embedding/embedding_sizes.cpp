#include "kernels/embedding/embedding.hpp"
#include "kernels/embedding/sort_sizes.hpp"

namespace tessera::kernels::cuda {

std::size_t embedding_backward_workspace_bytes(const EmbeddingBackward& p) { return sort_sizes::bytes(p.M); }

}  // namespace tessera::kernels::cuda
