// cuDNN's functions that our code and cudnn-frontend call, each handed on to the library that is opened here. cudnn-frontend can open the
// library itself, but then it opens the CUDA runtime too, which is linked into our programs and need not be there as a library.
#include "kernels/cuda/cudnn_library.hpp"

#include <cudnn.h>
#include <dlfcn.h>

#include "base/check.hpp"

namespace tessera::kernels::cuda::cudnn_library {
namespace {

constexpr const char* file = "libcudnn.so.9";

struct Library {
  void* opened = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  std::string reason;
  Library() {
    if (opened) return;
    const char* why = dlerror();
    reason =
        fmt::format("{} was not found ({}); install cuDNN 9, or put its folder into LD_LIBRARY_PATH", file, why ? why : "no reason given");
  }
};
const Library& library() {
  static const Library it;
  return it;
}

}  // namespace

const std::string& why_not() { return library().reason; }

void* find(const char* name) {
  void* found = library().opened ? dlsym(library().opened, name) : nullptr;
  if (!found) fail(ExitCode::environment, "{} of cuDNN cannot be called: {}", name, library().opened ? "this version has none" : why_not());
  return found;
}

}  // namespace tessera::kernels::cuda::cudnn_library

#define TESSERA_CUDNN(result, name, parameters, arguments)                                                              \
  result name parameters {                                                                                              \
    static const auto function = reinterpret_cast<decltype(&name)>(tessera::kernels::cuda::cudnn_library::find(#name)); \
    return function arguments;                                                                                          \
  }

extern "C" {
TESSERA_CUDNN(std::size_t, cudnnGetVersion, (), ())
TESSERA_CUDNN(const char*, cudnnGetErrorString, (cudnnStatus_t status), (status))
TESSERA_CUDNN(void, cudnnGetLastErrorString, (char* message, std::size_t bytes), (message, bytes))
TESSERA_CUDNN(cudnnStatus_t, cudnnCreate, (cudnnHandle_t * handle), (handle))
TESSERA_CUDNN(cudnnStatus_t, cudnnSetStream, (cudnnHandle_t handle, cudaStream_t stream), (handle, stream))
TESSERA_CUDNN(cudnnStatus_t, cudnnGetStream, (cudnnHandle_t handle, cudaStream_t* stream), (handle, stream))
TESSERA_CUDNN(cudnnStatus_t, cudnnBackendCreateDescriptor, (cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor),
              (type, descriptor))
TESSERA_CUDNN(cudnnStatus_t, cudnnBackendDestroyDescriptor, (cudnnBackendDescriptor_t descriptor), (descriptor))
TESSERA_CUDNN(cudnnStatus_t, cudnnBackendFinalize, (cudnnBackendDescriptor_t descriptor), (descriptor))
TESSERA_CUDNN(cudnnStatus_t, cudnnBackendSetAttribute,
              (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
               const void* elements),
              (descriptor, name, type, count, elements))
TESSERA_CUDNN(cudnnStatus_t, cudnnBackendGetAttribute,
              (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t asked,
               std::int64_t* count, void* elements),
              (descriptor, name, type, asked, count, elements))
TESSERA_CUDNN(cudnnStatus_t, cudnnBackendExecute,
              (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t variant_pack), (handle, plan, variant_pack))
// Not called; the frontend's headers name them.
TESSERA_CUDNN(cudnnStatus_t, cudnnCreateFilterDescriptor, (cudnnFilterDescriptor_t * filter), (filter))
TESSERA_CUDNN(cudnnStatus_t, cudnnDestroyFilterDescriptor, (cudnnFilterDescriptor_t filter), (filter))
TESSERA_CUDNN(cudnnStatus_t, cudnnSetFilterNdDescriptor,
              (cudnnFilterDescriptor_t filter, cudnnDataType_t type, cudnnTensorFormat_t format, int dimensions, const int* sizes),
              (filter, type, format, dimensions, sizes))
TESSERA_CUDNN(cudnnStatus_t, cudnnReorderFilterAndBias,
              (cudnnHandle_t handle, const cudnnFilterDescriptor_t filter, cudnnReorderType_t reorder, const void* filter_data,
               void* reordered_filter, int reorder_bias, const void* bias, void* reordered_bias),
              (handle, filter, reorder, filter_data, reordered_filter, reorder_bias, bias, reordered_bias))
}
