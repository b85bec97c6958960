#include "schedule/build/tower_sums.hpp"

#include "kernels/step/step.hpp"
#include "schedule/build/step_ends.hpp"

namespace tessera {

void emit_begin_of(Emitter& out, const Tower& tower) {
  out.emit({.name = "begin sums of " + tower.name,
            .op = BeginStep{},
            .uses = {out.buffers.whole(tower.prefix + "scalars", Access::write), out.buffers.whole("inputs", Access::read)}});
  if (out.frame.has_experts())
    out.emit({.name = "clear router totals of " + tower.name,
              .op = Zero{},
              .uses = {out.buffers.whole(tower.prefix + "router", Access::write)}});
}

void emit_finish_of(Emitter& out, const Tower& tower) {
  const std::string scalars = tower.prefix + "scalars", report = tower.prefix + "report";
  const Use inputs = out.buffers.whole("inputs", Access::read);
  out.emit({.name = "count flags of " + tower.name, .op = CountFlags{}, .uses = {out.buffers.whole(scalars, Access::add), inputs}});
  emit_sums_over_ranks(out, "all-reduce sums of " + tower.name, 0, kernels::step_counts + kernels::step_sums, scalars);
  out.emit({.name = "finish " + tower.name,
            .op = FinishStep{},
            .uses = {out.buffers.whole(scalars, Access::read), inputs, out.buffers.absent(), out.buffers.whole(report, Access::write),
                     out.buffers.absent()}});
  emit_download(out, report);
}

}  // namespace tessera
