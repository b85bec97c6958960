#include "schedule/build/fp8_scales.hpp"

#include "schedule/build/step_ends.hpp"

namespace tessera {

void emit_fp8_scales(Emitter& out, bool enters) {
  const Fp8Shape& fp8 = out.frame.shape.fp8;
  if (!fp8.delayed()) return;
  const Use largest = out.buffers.whole("fp8_largest", Access::add);
  if (enters && out.frame.request.mesh.ranks() > 1)
    out.emit({.name = "all-reduce largest magnitudes",
              .op = Collective{.kind = CollectiveKind::all_reduce,
                               .axes = out.frame.request.axes(),
                               .count = fp8.history_count(),
                               .dtype = DType::f32,
                               .reduction = Reduction::max},
              .lane = Lane::reduce,
              .uses = {largest}});
  out.emit({.name = "scales of fp8",
            .op = UpdateFp8Scales{.matrices = std::ssize(fp8.matrices), .length = fp8.history, .margin = fp8.margin, .enters = enters},
            .uses = {out.buffers.whole("fp8_history", Access::add), out.buffers.whole("fp8_multipliers", Access::write), largest}});
  if (enters) emit_download(out, "fp8_history");
}

Use fp8_of(const Emitter& out, const char* buffer, kernels::Fp8Tensor first, kernels::Fp8Tensor last, Access access) {
  const Fp8Shape& fp8 = out.frame.shape.fp8;
  const auto kinds = static_cast<std::int64_t>(last) - static_cast<std::int64_t>(first) + 1;
  return {out.buffers.named(buffer), 4 * fp8.history_of(fp8.matrices.front(), first), 4 * kinds * std::ssize(fp8.matrices), access};
}

Use fp8_of_weight(const Emitter& out, const char* buffer, const std::string& weight, Access access) {
  const Fp8Shape& fp8 = out.frame.shape.fp8;
  if (!fp8.delayed()) return out.buffers.absent();
  return {out.buffers.named(buffer), 4 * fp8.history_of(weight, kernels::Fp8Tensor::weight), 4, access};
}

}  // namespace tessera
