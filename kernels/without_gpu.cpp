// The ops of the CUDA backend in a build that has none: each throws. No run comes here, since run.device is looked at first
// (train/engine/device.cpp).
#include "base/check.hpp"
#include "kernels/context.hpp"

namespace tessera::kernels {
namespace {

[[noreturn]] void refuse(const char* op) {
  fail(ExitCode::environment,
       "the kernel {} was called on a GPU, but this program was built without the CUDA backend: build the preset cuda", op);
}

}  // namespace
}  // namespace tessera::kernels

#undef TESSERA_OP
#define TESSERA_OP(name, parameters, arguments)        \
  namespace host {                                     \
  void name parameters;                                \
  }                                                    \
  namespace cuda {                                     \
  [[noreturn]] void name parameters { refuse(#name); } \
  }                                                    \
  inline void name parameters { host::name arguments; }
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include "kernels/ops.hpp"  // all headers that declare one; made by CMakeLists.txt
