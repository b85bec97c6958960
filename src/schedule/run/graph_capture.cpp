#include "base/backend.hpp"
#ifdef TESSERA_CUDA
#include "schedule/run/graph_capture.hpp"

#include "base/log.hpp"

namespace tessera {

std::unique_ptr<cuda::Graph> capture_graph(const cuda::Streams& streams, GraphMode& mode, const std::function<void()>& issue,
                                           const std::function<void()>& dropped) {
  try {
    auto graph = mode == GraphMode::on ? streams.capture(issue) : streams.capture(issue, most_graph_nodes);
    debug("a program is a CUDA graph of {} nodes", graph->nodes());
    return graph;
  } catch (const Error& error) {
    dropped();
    if (mode == GraphMode::on) throw;
    warning("a step cannot be a CUDA graph here ({}): its tasks are issued one by one. Set kernels.cuda_graph = \"off\" to do so at once",
            error.what());
    mode = GraphMode::off;
    return nullptr;
  }
}

}  // namespace tessera
#endif
