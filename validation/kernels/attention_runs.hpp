// Attention on a GPU (or in the emulator) and on the host on the same inputs.
#pragma once
#include "base/backend.hpp"
#include "validation/kernels/attention_cases.hpp"
#include "validation/kernels/device_array.hpp"
#ifdef TESSERA_EMULATED_GPU
#include <emulator.hpp>
#endif

namespace tessera::kernels::testing {

struct AttentionResult {
  Tensor out, lse, d_qkv;
  bool intact = true;
  explicit AttentionResult(const AttentionShape& s)
      : out(s.B * s.T * s.out_width(), s.dtype), lse(s.B * s.H * s.T, DType::f32), d_qkv(s.B * s.T * s.qkv_width(), s.dtype) {}
  AttentionValues values() const { return {out.doubles(), lse.doubles(), d_qkv.doubles()}; }
};

inline void fetch(Tensor& to, const DeviceBytes& from) {
  const std::vector<std::byte> bytes = from.download();
  std::memcpy(to.data(), bytes.data(), bytes.size());
}

inline AttentionResult on_host(const AttentionShape& s, const AttentionOperands& x) {
  AttentionResult r(s);
  Workspace forward(host::attention_forward_workspace_bytes(s)), backward(host::attention_backward_workspace_bytes(s));
  const std::int32_t* starts = x.document_starts();
  host::attention_forward(
      forward.context(),
      {.out = r.out.data(), .lse = r.lse.as<float>(), .qkv = packed_qkv(x.qkv.data(), s), .shape = s, .document_starts = starts});
  host::attention_backward(backward.context(), {.d_qkv = packed_qkv(r.d_qkv.data(), s),
                                                .d_out = x.d_out.data(),
                                                .qkv = packed_qkv(x.qkv.data(), s),
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
  cuda::attention_forward(
      forward.context(),
      {.out = out.data(), .lse = lse.floats(), .qkv = packed_qkv(qkv.data() + offset, s), .shape = s, .document_starts = starts});
  cuda::attention_backward(backward.context(), {.d_qkv = packed_qkv(d_qkv.data(), s),
                                                .d_out = d_out.data() + offset,
                                                .qkv = packed_qkv(qkv.data() + offset, s),
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

inline void expect_close(const AttentionShape& s, const AttentionResult& got, const AttentionResult& want) {
  EXPECT_TRUE(got.intact) << name_of(s);
  expect_close(s, got.values(), want.values());
}

/// f() once more, in the emulator with its threads run backward between barriers: what is missing between threads shows.
template <class F>
auto again(F f) {
#ifdef TESSERA_EMULATED_GPU
  emulator::set_order(emulator::Order::backward);
#endif
  auto result = f();
#ifdef TESSERA_EMULATED_GPU
  emulator::set_order(emulator::Order::forward);
#endif
  return result;
}

}  // namespace tessera::kernels::testing
