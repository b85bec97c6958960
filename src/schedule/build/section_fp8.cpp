// Scales of products in fp8 that are those of earlier steps.
#include "kernels/fp8_history/fp8_history.hpp"
#include "schedule/build/section_builder.hpp"

namespace tessera {

void SectionBuilder::emit_fp8_scales(bool enters) {
  const Fp8Shape& fp8 = frame_.shape.fp8;
  if (!fp8.delayed()) return;
  const Use largest = buffers_.whole("fp8_largest", Access::add);
  if (enters && frame_.request.mesh.ranks() > 1)
    emit({.name = "all-reduce largest magnitudes",
          .op = Collective{.kind = CollectiveKind::all_reduce,
                           .axes = frame_.request.axes(),
                           .count = fp8.history_count(),
                           .dtype = DType::f32,
                           .reduction = Reduction::max},
          .lane = Lane::reduce,
          .uses = {largest}});
  emit({.name = "scales of fp8",
        .op = UpdateFp8Scales{.matrices = std::ssize(fp8.matrices), .length = fp8.history, .margin = fp8.margin, .enters = enters},
        .uses = {buffers_.whole("fp8_history", Access::add), buffers_.whole("fp8_multipliers", Access::write), largest}});
  if (enters) emit_download("fp8_history");
}

Use SectionBuilder::fp8_of(const char* buffer, kernels::Fp8Tensor first, kernels::Fp8Tensor last, Access access) const {
  const Fp8Shape& fp8 = frame_.shape.fp8;
  const auto kinds = static_cast<std::int64_t>(last) - static_cast<std::int64_t>(first) + 1;
  return {buffers_.named(buffer), 4 * fp8.history_of(fp8.matrices.front(), first), 4 * kinds * std::ssize(fp8.matrices), access};
}

Use SectionBuilder::fp8_of_weight(const char* buffer, const std::string& weight, Access access) const {
  const Fp8Shape& fp8 = frame_.shape.fp8;
  if (!fp8.delayed()) return buffers_.absent();
  return {buffers_.named(buffer), 4 * fp8.history_of(weight, kernels::Fp8Tensor::weight), 4, access};
}

}  // namespace tessera
