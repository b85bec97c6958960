// Attention on a GPU (or in the emulator) and on the host on the same inputs.
#pragma once
#include <fmt/format.h>

#include "kernels/attention/attention.hpp"
#include "validation/kernels/device_array.hpp"
#include "validation/kernels/gemm_test_support.hpp"

namespace tessera::kernels::testing {

struct AttentionResult {
  Tensor out, lse, d_qkv;
  bool intact = true;
  explicit AttentionResult(const AttentionShape& s)
      : out(s.B * s.T * s.H * s.D, s.dtype), lse(s.B * s.H * s.T, DType::f32), d_qkv(s.B * s.T * (s.H + 2 * s.G) * s.D, s.dtype) {}
};

struct AttentionOperands {
  Tensor qkv, d_out;
  std::vector<std::int32_t> starts;  ///< of documents, (B, T), or none
  explicit AttentionOperands(const AttentionShape& s, double size = 1)
      : qkv(s.B * s.T * (s.H + 2 * s.G) * s.D, s.dtype), d_out(s.B * s.T * s.H * s.D, s.dtype) {
    qkv.randomize(1, size);
    d_out.randomize(2);
  }
};

inline void fetch(Tensor& to, const DeviceBytes& from) {
  const std::vector<std::byte> bytes = from.download();
  std::memcpy(to.data(), bytes.data(), bytes.size());
}

inline AttentionResult on_host(const AttentionShape& s, const AttentionOperands& x) {
  AttentionResult r(s);
  Workspace forward(host::attention_forward_workspace_bytes(s)), backward(host::attention_backward_workspace_bytes(s));
  const std::int32_t* starts = x.starts.empty() ? nullptr : x.starts.data();
  host::attention_forward(forward.context(),
                          {.out = r.out.data(), .lse = r.lse.as<float>(), .qkv = x.qkv.data(), .shape = s, .document_starts = starts});
  host::attention_backward(backward.context(), {.d_qkv = r.d_qkv.data(),
                                                .d_out = x.d_out.data(),
                                                .qkv = x.qkv.data(),
                                                .out = r.out.data(),
                                                .lse = r.lse.as<float>(),
                                                .shape = s,
                                                .document_starts = starts});
  return r;
}

// Operands lie `offset` bytes after a multiple of 256. The backward pass may take another path than the forward pass.
inline AttentionResult on_device(const AttentionShape& s, const AttentionOperands& x, std::size_t offset,
                                 const AttentionShape& backward_shape) {
  AttentionResult r(s);
  auto shifted = [&](const Tensor& t) {
    std::vector<std::byte> bytes(offset, std::byte{0});
    bytes.insert(bytes.end(), t.bytes().begin(), t.bytes().end());
    return bytes;
  };
  DeviceBytes qkv(shifted(x.qkv)), d_out(shifted(x.d_out)), out(r.out.bytes().size()), lse(r.lse.bytes().size());
  DeviceBytes d_qkv(r.d_qkv.bytes().size()), forward(cuda::attention_forward_workspace_bytes(s)),
      backward(cuda::attention_backward_workspace_bytes(backward_shape));
  DeviceArray<std::int32_t> there(x.starts);
  const std::int32_t* starts = x.starts.empty() ? nullptr : there.data();
  cuda::attention_forward(forward.context(),
                          {.out = out.data(), .lse = lse.floats(), .qkv = qkv.data() + offset, .shape = s, .document_starts = starts});
  cuda::attention_backward(backward.context(), {.d_qkv = d_qkv.data(),
                                                .d_out = d_out.data() + offset,
                                                .qkv = qkv.data() + offset,
                                                .out = out.data(),
                                                .lse = lse.floats(),
                                                .shape = backward_shape,
                                                .document_starts = starts});
  fetch(r.out, out);
  fetch(r.lse, lse);
  fetch(r.d_qkv, d_qkv);
  for (const DeviceBytes* a : {&qkv, &d_out, &out, &lse, &d_qkv, &forward, &backward}) r.intact = r.intact && a->intact();
  return r;
}

inline AttentionResult on_device(const AttentionShape& s, const AttentionOperands& x, std::size_t offset = 0) {
  return on_device(s, x, offset, s);
}

// d_qkv's three parts have different sizes: each is compared by itself.
inline std::vector<double> part_of(const Tensor& rows, const AttentionShape& s, int part) {
  const std::int64_t stride = (s.H + 2 * s.G) * s.D, begin = part == 0 ? 0 : (s.H + (part - 1) * s.G) * s.D;
  const std::int64_t width = (part == 0 ? s.H : s.G) * s.D;
  std::vector<double> r;
  for (std::int64_t i = 0; i < s.B * s.T; ++i)
    for (std::int64_t d = 0; d < width; ++d) r.push_back(rows.get(i * stride + begin + d));
  return r;
}

inline void expect_close(const AttentionShape& s, const AttentionResult& got, const AttentionResult& want) {
  SCOPED_TRACE(fmt::format("B{} T{} H{} G{} D{} {}", s.B, s.T, s.H, s.G, s.D, name_of(s.dtype)));
  EXPECT_TRUE(got.intact);
  EXPECT_LT(relative_error(got.out.doubles(), want.out.doubles()), tolerance(s.dtype));
  EXPECT_LT(relative_error(got.lse.doubles(), want.lse.doubles()), 1e-5);
  for (int part = 0; part < 3; ++part) {
    if (s.T == 1 && part < 2) {  // one token attends to itself alone: dQ and dK are zero but for rounding
      for (double d : part_of(got.d_qkv, s, part)) EXPECT_NEAR(d, 0, s.dtype == DType::f32 ? 1e-5 : 1e-1);
    } else {
      EXPECT_LT(relative_error(part_of(got.d_qkv, s, part), part_of(want.d_qkv, s, part)), tolerance(s.dtype)) << "qkv"[part];
    }
  }
}

}  // namespace tessera::kernels::testing
