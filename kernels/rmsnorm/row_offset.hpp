// Where the rows of RMSNorm's operands lie.
#pragma once
#include "base/types.hpp"

namespace tessera::kernels {

/// Offset of row r where `inner` rows of C share a token row of `stride` elements; 0 stands for the dense inner * C.
struct RowOffset {
  std::int64_t C, inner, stride;
  RowOffset(std::int64_t C, std::int64_t inner, std::int64_t stride) : C(C), inner(inner), stride(stride ? stride : inner * C) {}
  TESSERA_BOTH std::int64_t operator()(std::int64_t r) const {
    if (inner == 1) return r * stride;
    const std::int64_t token = quotient(r);
    return token * stride + (r - token * inner) * C;
  }
  bool dense() const { return stride == inner * C; }

 private:
  TESSERA_BOTH std::int64_t quotient(std::int64_t r) const {
#ifdef __CUDA_ARCH__
    return static_cast<std::uint32_t>(r) / static_cast<std::uint32_t>(inner);  // a quarter of the time; launches refuse 2^31 rows
#else
    return r / inner;
#endif
  }
};

}  // namespace tessera::kernels
