#include <fmt/format.h>

#include <algorithm>

#include "kernels/group_losses/group_losses.hpp"
#include "kernels/preference/preference.hpp"
#include "kernels/router/router.hpp"
#include "kernels/step/step.hpp"
#include "optimizer/state.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/build/schedule_builder.hpp"
#include "schedule/inputs.hpp"
#include "schedule/run_values.hpp"

namespace tessera {

namespace {

/// int64 that a step's routers add up to.
std::int64_t router_sums(const ModelShape& s) { return kernels::router_sums + s.L * s.router.E; }

}  // namespace

void ScheduleBuilder::declare_all() {
  const ModelShape& s = schedule_.shape;
  const std::int64_t micros = std::max(frame_.training() ? frame_.micro_batches() : 0, frame_.request.evaluation_micro_batches);
  for (int u = 0; u < frame_.units(); ++u) declare_unit(u);
  for (int u = 0; u < frame_.units(); ++u) declare_sign_errors(u);
  for (const auto& [unit, v] : frame_.packed()) buffers_.declare(packed_name(*v), Category::packed, frame_.local_tier, v->bytes, Life::run);
  const std::int64_t slots = std::max<std::int64_t>(micros, 1);
  for (const InputRow& row : input_rows)  // a stage of a pipeline has those that it reads
    if (passes_.any_value(row.kind)) buffers_.input(row.name, Category::inputs, row.bytes * row.numbers(s) * slots, slots);
  std::int64_t rows_of_rotations = 0;
  for (const Range& rows : rotated_positions(s, 0)) rows_of_rotations += rows.size();
  // A text may be longer than the samples that a model learns from.
  for (int rotation = 0; rotation < static_cast<int>(s.rotation.tables.size()); ++rotation)
    buffers_.input(name_of_rotation("rope", rotation), Category::inputs,
                   4 * std::max(rows_of_rotations, frame_.request.text.capacity) * s.rotated_features());
  buffers_.declare("scalars", Category::scalars, frame_.local_tier, sizeof(kernels::StepScalars), Life::run);
  buffers_.input("inputs", Category::scalars, sizeof(kernels::StepInputs));
  if (s.loss_groups > 0) buffers_.input("group_losses", Category::scalars, 8 * kernels::group_sums * s.loss_groups);
  if (s.preference.on) buffers_.input("preference", Category::scalars, 8 * kernels::preference_sums);
  if (frame_.has_experts()) buffers_.input("router", Category::scalars, 8 * router_sums(s));
  const bool on_disk = std::ranges::any_of(schedule_.buffers, [](const Buffer& b) { return b.tier == Tier::nvme; });
  if (frame_.training() && (on_disk || frame_.deck.activation.offload == OffloadDevice::nvme))
    buffers_.declare("nvme.requests", Category::workspace, Tier::host,
                     (frame_.deck.nvme.queue_depth + frame_.deck.nvme.threads) * frame_.deck.nvme.block_bytes(), Life::run);
  const std::int64_t update_bytes = std::ssize(frame_.optimizers) * static_cast<std::int64_t>(sizeof(kernels::UpdateScalars));
  if (frame_.offloads()) {
    buffers_.input("update", Category::scalars, update_bytes);
    buffers_.input("offloaded_sums", Category::scalars, sizeof(kernels::StepScalars));
  } else {
    buffers_.declare("update", Category::scalars, frame_.local_tier, update_bytes, Life::run);
  }
  buffers_.input("report", Category::scalars, sizeof(kernels::StepReport));
  for (const Tower& tower : schedule_.towers) {
    if (!tower.trains_nothing()) continue;
    buffers_.declare(tower.prefix + "scalars", Category::scalars, frame_.local_tier, sizeof(kernels::StepScalars), Life::run);
    if (frame_.has_experts())
      buffers_.declare(tower.prefix + "router", Category::scalars, frame_.local_tier, 8 * router_sums(s), Life::run);
    buffers_.input(tower.prefix + "report", Category::scalars, sizeof(kernels::StepReport));
  }
  if (!frame_.training()) return;
  buffers_.declare("gradient_scale", Category::scalars, frame_.local_tier, sizeof(kernels::GradientScale), Life::run);
  buffers_.input("run", Category::scalars, sizeof(kernels::RunValues));
  if (s.fp8.delayed()) {
    const std::int64_t bytes = 4 * s.fp8.history_count();
    buffers_.input("fp8_history", Category::scalars, bytes * s.fp8.history);
    buffers_.declare("fp8_multipliers", Category::scalars, frame_.local_tier, bytes, Life::run);
    buffers_.declare("fp8_largest", Category::scalars, frame_.comm_tier, bytes, Life::run);
  }
  schedule_.values = run_values(frame_.deck, s.fp8, schedule_);
}

void ScheduleBuilder::declare_unit(int unit) {
  const std::string& name = frame_.unit_at(unit).name;
  const UnitPlan& p = frame_.plan(unit);
  const Tier home = p.parameters_offloaded ? shard_home(unit) : frame_.comm_tier;
  buffers_.declare("parameters." + name, Category::parameters, home, frame_.parameter_bytes(unit, p.parameters.size()), Life::run);
  if (!frame_.training()) return;
  if (frame_.unit_at(unit).frozen) {  // what kernels read is all there is
    const std::string& tower = frame_.unit_at(unit).tower;
    schedule_.state.push_back({.group = tower.empty() ? std::string(master_group) : tower,
                               .unit = unit,
                               .elements = p.state,
                               .use = buffers_.parameters(unit, p.state, Access::read),
                               .type = kernels::state_type_of(frame_.type_of(unit))});
    return;
  }
  const auto hold = [&](const StateRow& row, Category category) {
    const bool of_elements = row.of == kernels::Extent::element;
    // Numbers of rows and columns are few: they stay in memory.
    const Tier tier = !p.gradient.offloaded ? frame_.local_tier : of_elements ? frame_.state_home() : Tier::host;
    const Range elements = of_elements ? p.state : Range{0, lines_of(frame_.layout, frame_.unit_at(unit), row.of)};
    const int buffer = buffers_.declare(fmt::format("{}.{}", row.group, name), category, tier, row.bytes(elements.size()), Life::run);
    schedule_.state.push_back({.group = std::string(row.group),
                               .unit = unit,
                               .elements = elements,
                               .use = buffers_.whole(buffer, Access::read),
                               .type = row.type,
                               .of = row.of});
  };
  if (frame_.copy_is_master(unit))
    schedule_.state.push_back(
        {.group = std::string(master_group), .unit = unit, .elements = p.state, .use = buffers_.parameters(unit, p.state, Access::read)});
  else
    hold({master_group}, Category::master);
  if (!frame_.unit_at(unit).learns()) return;
  for (const StateRow& row : frame_.optimizer_of(unit).update.state) hold(row, Category::state);
  if (!p.gradient.offloaded || p.storage.gradients_whole)
    buffers_.declare("gradients." + name, Category::gradients, p.storage.gradients_whole ? frame_.comm_tier : frame_.local_tier,
                     frame_.gradient_bytes(unit, p.gradient.held.size()), Life::run);
  if (p.gradient.keeps_error)
    for (const GradientHop& hop : gradient_hops(p, frame_.unit_at(unit).elements))
      buffers_.declare(frame_.error_name(unit, hop.wire), Category::gradients, frame_.local_tier,
                       kernels::wire_bytes(Wire::int8_blocks, hop.elements), Life::run);
  if (p.gradient.offloaded)
    buffers_.declare("offloaded_gradients." + name, Category::gradients, frame_.below_tier, frame_.gradient_bytes(unit, p.owned.size()),
                     Life::run);
}

/// After all that a warmup has too, whose state then lies where theirs does.
void ScheduleBuilder::declare_sign_errors(int unit) {
  if (!frame_.training() || !frame_.plan(unit).gradient.own) return;
  const auto hold = [&](std::string_view group, std::int64_t elements) {
    const int buffer = buffers_.declare(fmt::format("{}.{}", group, frame_.unit_at(unit).name), Category::state, frame_.local_tier,
                                        4 * elements, Life::run);
    schedule_.state.push_back(
        {.group = std::string(group), .unit = unit, .elements = {0, elements}, .use = buffers_.whole(buffer, Access::read), .own = true});
  };
  hold(sign_error_group, frame_.unit_at(unit).elements);
  hold(mean_sign_error_group, mean_elements(sign_blocks_of(frame_.unit_at(unit), frame_.plan(unit).owners)));
}

Tier ScheduleBuilder::shard_home(int unit) {
  const OffloadParamKeys& keys = frame_.deck.zero.offload_param;
  const std::int64_t kept = parameters_on_host_ + frame_.plan(unit).shard;
  if (keys.device == OffloadDevice::nvme && kept > keys.max_in_cpu) return Tier::nvme;
  parameters_on_host_ = kept;
  return frame_.below(keys.pin_memory);
}

/// Where each stream comes back too soon to leave, nothing goes to disk, and no engine of disks works in its buffer.
void ScheduleBuilder::free_idle_requests() {
  const int requests = schedule_.find_buffer("nvme.requests");
  if (requests >= 0 && std::ranges::none_of(schedule_.buffers, [](const Buffer& b) { return b.tier == Tier::nvme; }))
    buffers_[requests].bytes = 0;
}

}  // namespace tessera
