#ifdef TESSERA_CUDA
#include "schedule/run/graph_capture.hpp"

#include "base/log.hpp"

namespace tessera {

std::unique_ptr<cuda::Graph> capture_graph(const cuda::Streams& streams, GraphMode& mode, const std::function<void()>& issue,
                                           const std::function<void()>& dropped) {
  try {
    streams.begin_capture();
    issue();
    return streams.end_capture();
  } catch (const Error& error) {
    streams.drop_capture();
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
