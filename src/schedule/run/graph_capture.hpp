// How a program that a GPU is given again and again becomes a CUDA graph.
#pragma once
#include "base/backend.hpp"
#ifdef TESSERA_CUDA
#include <functional>
#include <memory>

#include "kernels/cuda/streams.hpp"
#include "schedule/run/executor.hpp"

namespace tessera {

/// Of a graph where the deck leaves the choice to us: nodes take memory of the GPU that the plan's reserve must hold. Not yet measured.
inline constexpr std::size_t most_graph_nodes = 200000;

/// What `issue` gives to the streams, as a graph; nothing of it is done yet. All of it must have run before, since CUDA, cuBLASLt and NCCL
/// prepare things at first use. Where CUDA refuses: throws if `mode` is on, and otherwise warns, sets `mode` to off and returns null.
/// `dropped` is called between the refusal and that decision.
std::unique_ptr<cuda::Graph> capture_graph(
    const cuda::Streams& streams, GraphMode& mode, const std::function<void()>& issue, const std::function<void()>& dropped = [] {});

}  // namespace tessera
#endif
