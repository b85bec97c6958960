#include "base/backend.hpp"
#include "kernels/libraries/libraries.hpp"

#include <fmt/format.h>
#include <dnnl.hpp>

namespace tessera::kernels {

std::string onednn_version() {
  const dnnl_version_t* v = dnnl_version();
  return fmt::format("{}.{}.{} ({})", v->major, v->minor, v->patch, v->hash);
}

std::string onednn_instructions() {
  const dnnl::cpu_isa chosen = dnnl::get_effective_cpu_isa();
  switch (chosen) {
    case dnnl::cpu_isa::sse41:
      return "SSE41";
    case dnnl::cpu_isa::avx:
      return "AVX";
    case dnnl::cpu_isa::avx2:
      return "AVX2";
    case dnnl::cpu_isa::avx2_vnni:
      return "AVX2_VNNI";
    case dnnl::cpu_isa::avx512_core:
      return "AVX512_CORE";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "AVX512_CORE_VNNI";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "AVX512_CORE_BF16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "AVX512_CORE_AMX";
    default:  // of a newer oneDNN
      return fmt::format("{:#x}", static_cast<unsigned>(chosen));
  }
}

#ifndef TESSERA_CUDA
std::string cuda_libraries() { return ""; }
#endif

}  // namespace tessera::kernels
