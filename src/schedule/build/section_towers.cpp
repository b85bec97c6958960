// A tower beside the model has sums of a step of its own: it begins, counts and ends as an evaluation does.
#include "kernels/step/step.hpp"
#include "schedule/build/section_builder.hpp"

namespace tessera {

void SectionBuilder::emit_begin_of(const Tower& tower) {
  emit({.name = "begin sums of " + tower.name,
        .op = BeginStep{},
        .uses = {buffers_.whole(tower.prefix + "scalars", Access::write), buffers_.whole("inputs", Access::read)}});
  if (frame_.has_experts())
    emit({.name = "clear router totals of " + tower.name, .op = Zero{}, .uses = {buffers_.whole(tower.prefix + "router", Access::write)}});
}

void SectionBuilder::emit_finish_of(const Tower& tower) {
  const std::string scalars = tower.prefix + "scalars", report = tower.prefix + "report";
  const Use inputs = buffers_.whole("inputs", Access::read);
  emit({.name = "count flags of " + tower.name, .op = CountFlags{}, .uses = {buffers_.whole(scalars, Access::add), inputs}});
  emit_sums_over_ranks("all-reduce sums of " + tower.name, 0, kernels::step_counts + kernels::step_sums, scalars);
  emit({.name = "finish " + tower.name,
        .op = FinishStep{},
        .uses = {buffers_.whole(scalars, Access::read), inputs, buffers_.absent(), buffers_.whole(report, Access::write),
                 buffers_.absent()}});
  emit_download(report);
}

}  // namespace tessera
