#include "schedule/build/update_sums.hpp"

#include <fmt/format.h>

#include "kernels/fixed/fixed_sum.hpp"
#include "kernels/sums/sums.hpp"
#include "schedule/build/step_ends.hpp"

namespace tessera {
namespace {

std::string name_of_sums(const Emitter& out, int unit, UpdateOperand::Kind kind) {
  return (kind == UpdateOperand::Kind::lines ? "line_sums." : "tensor_sums.") + out.frame.unit_at(unit).name;
}

}  // namespace

std::int64_t words_before(const LinesBefore& lines, std::int64_t slots) {
  return kernels::words_of_line * (lines.rows + lines.columns) + kernels::words_of_matrix * slots;
}

Use tensor_sums(Emitter& out, int unit, UpdateOperand::Kind kind, Access access) {
  const std::string name = name_of_sums(out, unit, kind);
  const Unit& u = out.frame.unit_at(unit);
  const std::int64_t bytes =
      kind == UpdateOperand::Kind::lines
          ? 8 * words_before(lines_before(out.frame.layout, u).back(), std::ssize(u.slots))
          : std::ssize(u.slots) * out.frame.optimizer_of(unit).update.sums * static_cast<std::int64_t>(sizeof(kernels::FixedSum));
  if (out.frame.plan(unit).gradient.offloaded && out.frame.on_gpu())
    return out.buffers.first_of(Buffers::host_side(name), Category::workspace, Tier::pinned, bytes, access);
  return out.buffers.first_of(name, Category::workspace, out.frame.local_tier, bytes, access);
}

void emit_all_reduce_of_sums(Emitter& out, int unit, UpdateOperand::Kind kind) {
  const UnitPlan& p = out.frame.plan(unit);
  const Unit& u = out.frame.unit_at(unit);
  Axes summed_over = p.storage.optimizer_whole ? Axes{0} : p.owners.axes;
  for (const Slot& slot : u.slots)
    if (slot.elements < out.frame.layout.table[index(slot.parameter)].shape.elements()) summed_over |= axes({Axis::tp});
  if (out.frame.request.group(summed_over).size == 1) return;
  const std::string name = name_of_sums(out, unit, kind);
  const Use mine = tensor_sums(out, unit, kind, Access::add);
  const bool elsewhere = p.gradient.offloaded && out.frame.on_gpu();
  const Use sums = elsewhere ? out.buffers.first_of(name, Category::workspace, out.frame.local_tier, mine.bytes, Access::add) : mine;
  if (elsewhere) emit_copy(out, "upload", name, Buffers::host_side(name));
  out.emit({.name = "all-reduce sums of " + u.name,
            .op = Collective{CollectiveKind::all_reduce, summed_over, sums.bytes / 8, 0, DType::i64},
            .lane = Lane::reduce,
            .uses = {sums}});
  if (elsewhere) emit_copy(out, "download", Buffers::host_side(name), name);
}

}  // namespace tessera
