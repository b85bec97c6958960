// What every kernel is handed besides its operands, and how an op finds the code of its backend.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/types.hpp"

namespace tessera::kernels {

/// Whose code runs an op: host threads, or an NVIDIA GPU. One binary holds both.
enum class Backend : std::uint8_t { host, cuda };

/// Where and how a kernel runs. Kernels allocate nothing: temporary memory is `workspace`, sized by the op's *_workspace_bytes function.
struct Context {
  std::span<std::byte> workspace;  ///< 64-byte aligned (256 on a GPU)
  bool reproducible = false;       ///< results must not depend on the number of threads
  Backend backend = Backend::host;
  void* stream = nullptr;  ///< cudaStream_t; operands lie in device memory and the call returns before the work is done
};

}  // namespace tessera::kernels

// TESSERA_OP(name, (parameters), (arguments)) declares an op three times: host::name, cuda::name, and name, which calls the one that
// context.backend says. The first parameter is `const Context& context`. A build without the CUDA backend has cuda::name too, which throws
// (kernels/without_gpu.cpp). TESSERA_WORKSPACE declares how many bytes of workspace an op needs, of a backend; nothing is looked at but
// shapes. Every build knows both (OP_host.cpp, OP_sizes.cpp), so that it can plan for machines that it does not run on.
#define TESSERA_OP(name, parameters, arguments) \
  namespace host {                              \
  void name parameters;                         \
  }                                             \
  namespace cuda {                              \
  void name parameters;                         \
  }                                             \
  inline void name parameters { context.backend == Backend::cuda ? cuda::name arguments : host::name arguments; }
#define TESSERA_WORKSPACE(name, Arguments)                                               \
  namespace host {                                                                       \
  std::size_t name(const Arguments&);                                                    \
  }                                                                                      \
  namespace cuda {                                                                       \
  std::size_t name(const Arguments&);                                                    \
  }                                                                                      \
  inline std::size_t name(const Arguments& arguments, Backend backend = Backend::host) { \
    return backend == Backend::cuda ? cuda::name(arguments) : host::name(arguments);     \
  }
