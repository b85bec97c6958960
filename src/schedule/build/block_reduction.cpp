#include "schedule/build/block_reduction.hpp"

#include <fmt/format.h>

namespace tessera {
namespace {

/// `first`: of the step's terms.
Task encoding_of_terms(const Emitter& out, int unit, const GradientHop& hop, const Use& blocks, const Use& terms, bool first) {
  const std::string name = fmt::format("encode gradient {} in {} bits", out.frame.unit_at(unit).name, kernels::code_bits(hop.wire));
  if (!out.frame.plan(unit).gradient.keeps_error)
    return {.name = name, .op = Encode{hop.elements, DType::f32, hop.wire}, .lane = Lane::reduce, .uses = {blocks, terms}};
  const ErrorFeedbackKeys& keys = out.frame.deck.zero.error_feedback;
  return {.name = name + ", with what was left",
          .op = EncodeWithError{.count = hop.elements,
                                .wire = hop.wire,
                                .beta = static_cast<float>(keys.beta),
                                .interval = keys.reset_interval,
                                .first = first,
                                .scaled = out.frame.scales_sums()},
          .lane = Lane::reduce,
          .uses = {blocks, terms, out.buffers.whole(out.frame.error_name(unit, hop.wire), Access::add),
                   out.buffers.whole("run", Access::read)}};
}

void emit_hop(Emitter& out, int unit, const GradientHop& hop, const Use& terms, const Use& to, const GradientReduction& reduction) {
  const std::string& name = out.frame.unit_at(unit).name;
  const int bits = kernels::code_bits(hop.wire);
  const std::int64_t part = hop.elements / hop.among.size, bytes = kernels::wire_bytes(hop.wire, part);
  const auto blocks = [&](const char* which, Access access) {
    return out.buffers.first_of(fmt::format("{}_blocks.{}.{}", which, bits, name), Category::gradients, out.frame.comm_tier,
                                bytes * hop.among.size, access);
  };
  out.emit(encoding_of_terms(out, unit, hop, blocks("sent", Access::write), terms, reduction.first));
  out.emit({.name = fmt::format("exchange gradient {} in {} bits", name, bits),
            .op = Collective{CollectiveKind::all_to_all, hop.among.axes, bytes / 4, 0, DType::u32},
            .lane = Lane::reduce,
            .uses = {blocks("received", Access::write), blocks("sent", Access::read)},
            .bytes_moved = static_cast<double>(bytes) * (hop.among.size - 1)});
  out.emit({.name = fmt::format("reduce {} from {} bits", name, bits),
            .op = SumBlocks{part, hop.among.size, to.access == Access::add, hop.wire},
            .lane = Lane::reduce,
            .uses = {to, blocks("received", Access::read)}});
}

}  // namespace

void emit_block_reduce_scatter(Emitter& out, const GradientReduction& reduction, const Use& to) {
  const int unit = reduction.unit;
  const std::vector<GradientHop> hops = gradient_hops(out.frame.plan(unit), out.frame.unit_at(unit).elements);
  Use terms{reduction.whole, 0, out.frame.sum_bytes(unit, hops.front().elements), Access::read};
  if (hops.size() > 1) {
    Use part = out.buffers.first_of("group_gradients." + out.frame.unit_at(unit).name, Category::gradients, out.frame.local_tier,
                                    out.frame.sum_bytes(unit, hops.back().elements), Access::write);
    emit_hop(out, unit, hops.front(), terms, part, reduction);
    part.access = Access::read;
    terms = part;
  }
  emit_hop(out, unit, hops.back(), terms, to, reduction);
}

}  // namespace tessera
