// NVIDIA's libraries as this process has loaded them: what a machine has of them may be older, or in other places, than one thinks.
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <fstream>
#include <set>

#include "base/backend.hpp"
#include "kernels/attention/cudnn_attention.hpp"
#include "topology/world.hpp"
#include "validation/smoke/probes.hpp"

namespace tessera::smoke {
namespace {

struct Known {
  const char* name;
  const char* file;  ///< how its file's name begins
  std::string (*version)();
};

std::string of_cuda(cudaError_t (*ask)(int*)) {
  int version = 0;
  return ask(&version) == cudaSuccess ? fmt::format("{}.{}", version / 1000, version % 1000 / 10) : "unknown";
}
std::string version_of_cudnn() {
  const std::string name = kernels::cuda::cudnn_name();  // "cuDNN 9.19.0"
  return name.substr(name.find(' ') + 1);
}
const Known known[] = {{"driver", "libcuda.so", [] { return of_cuda(cudaDriverGetVersion); }},
                       {"CUDA runtime", "libcudart.so", [] { return of_cuda(cudaRuntimeGetVersion); }},
                       {"cuBLASLt", "libcublasLt.so", [] { return std::to_string(cublasLtGetVersion()); }},
                       {"cuDNN", "libcudnn.so", version_of_cudnn},
                       {"NCCL", "libnccl.so", nccl_version}};

/// The file of a library among what is mapped; empty where it is not loaded.
std::string path_of(const std::string& begins) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (const std::size_t slash = line.find('/'); slash != std::string::npos && line.find('/' + begins) != std::string::npos)
      return line.substr(slash);
  return "";
}

}  // namespace

std::vector<Library> new_libraries() {
  static std::set<std::string> told;
  std::vector<Library> found;
  for (const Known& library : known) {
    if (told.contains(library.name)) continue;
    std::string path = path_of(library.file);
#ifdef TESSERA_EMULATED_GPU
    const bool linked = true;  // all of them are the emulator's
    const char* const inside = "the emulator";
#else
    const bool linked = std::string(library.name) == "CUDA runtime";
    const char* const inside = "linked into the program";
#endif
    if (path.empty() && !linked) continue;
    told.insert(library.name);
    found.push_back({library.name, library.version(), path.empty() ? inside : path});
  }
  return found;
}

}  // namespace tessera::smoke
