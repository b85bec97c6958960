#include "kernels/attention_sinks/attention_sinks_sizes.hpp"

namespace tessera::kernels::cuda {

std::size_t attention_sinks_backward_workspace_bytes(const AttentionSinksBackward& p) {
  return attention_sinks_sizes::SinkTiles(p).rows.bytes(p.H);
}

}  // namespace tessera::kernels::cuda
