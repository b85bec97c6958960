#include <fmt/format.h>

#include <algorithm>

#include "kernels/group_losses/group_losses.hpp"
#include "kernels/router/router.hpp"
#include "kernels/step/step.hpp"
#include "optimizer/state.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/build/schedule_builder.hpp"

namespace tessera {

namespace {

/// int64 that a step's routers add up to.
std::int64_t router_sums(const ModelShape& s) { return kernels::router_sums + s.L * s.experts.E; }

/// The category in which the memory table counts a group of state.
Category category_named(std::string_view group) {
  for (int c = 0; c < category_count; ++c)
    if (name_of(static_cast<Category>(c)) == group) return static_cast<Category>(c);
  fail(ExitCode::internal, "state {} has no category in the memory table", group);
}

}  // namespace

int ScheduleBuilder::buffer(const std::string& name, Category category, Tier tier, std::int64_t bytes, Life life) {
  auto [it, fresh] = by_name_.try_emplace(name, static_cast<int>(schedule_.buffers.size()));
  if (fresh) {
    schedule_.buffers.push_back({name, category, tier, bytes, life});
    if (tier == Tier::nvme) schedule_.buffers.back().alignment = deck_.nvme.block_bytes();
  } else {
    Buffer& known = schedule_.buffers[index(it->second)];
    TESSERA_REQUIRE(known.life == life && known.tier == tier, "buffer {} is declared in two ways", name);
    known.bytes = std::max(known.bytes, bytes);
  }
  return it->second;
}

void ScheduleBuilder::declare_persistent() {
  const ModelShape& s = schedule_.shape;
  const std::int64_t micros =
      std::max(request_.training() ? accumulation_steps(deck_, request_.data.size) : 0, request_.evaluation_micro_batches);
  for (int u = 0; u < units(); ++u) declare_unit(u);
  declare_packed();
  const std::int64_t slots = std::max<std::int64_t>(micros, 1);
  // A stage of a pipeline has those that it reads.
  const auto has = [&](ValueKind kind) { return !pipelined() || uses(kind); };
  if (has(ValueKind::tokens)) input("tokens", Category::inputs, 4 * s.tokens() * micros, slots);
  if (has(ValueKind::targets)) input("targets", Category::inputs, 4 * s.tokens() * micros, slots);
  if (uses(ValueKind::token_groups)) input("token_groups", Category::inputs, 4 * s.tokens() * micros, slots);
  if (uses(ValueKind::document_starts)) input("document_starts", Category::inputs, 4 * inside_attention(s).tokens() * micros, slots);
  if (has(ValueKind::micro_batch_weight)) input("weights", Category::inputs, 8 * slots, slots);
  // A text may be longer than the samples that a model learns from.
  input("rope", Category::inputs, 4 * std::max(inside_attention(s).T, request_.text.capacity) * s.D);
  buffer("scalars", Category::scalars, local_tier_, sizeof(kernels::StepScalars), Life::run);
  input("inputs", Category::scalars, sizeof(kernels::StepInputs));
  if (s.loss_groups > 0) input("group_losses", Category::scalars, 8 * kernels::group_sums * s.loss_groups);
  if (has_experts()) input("router", Category::scalars, 8 * router_sums(s));
  const bool on_disk = std::ranges::any_of(schedule_.buffers, [](const Buffer& b) { return b.tier == Tier::nvme; });
  if (request_.training() && (on_disk || deck_.activation.offload == OffloadDevice::nvme))
    buffer("nvme.requests", Category::workspace, Tier::host, (deck_.nvme.queue_depth + deck_.nvme.threads) * deck_.nvme.block_bytes(),
           Life::run);
  if (offloads())
    declare_offload();
  else
    buffer("adamw", Category::scalars, local_tier_, sizeof(kernels::AdamwScalars), Life::run);
  input("report", Category::scalars, sizeof(kernels::StepReport));
}

void ScheduleBuilder::declare_unit(int unit) {
  const std::string& name = unit_at(unit).name;
  const UnitPlan& p = plan(unit);
  const Tier home = p.parameters_offloaded ? shard_home(unit) : comm_tier_;
  buffer("parameters." + name, Category::parameters, home, parameter_bytes(unit, p.parameters.size()), Life::run);
  if (!request_.training()) return;
  if (unit_at(unit).frozen) {  // what kernels read is all there is
    schedule_.state.push_back({.group = std::string(master_group),
                               .unit = unit,
                               .elements = p.state,
                               .use = parameter_use(unit, p.state, Access::read),
                               .type = type_of(unit)});
    return;
  }
  for (const std::string_view group : state_groups(deck_.optimizer.type)) {
    Held held{.group = std::string(group), .unit = unit, .elements = p.state, .use = {}};
    if (group == master_group && type_of(unit) == DType::f32 && p.parameters_offloaded == p.gradient.offloaded)
      held.use = parameter_use(unit, p.state, Access::read);
    else
      held.use = whole(buffer(fmt::format("{}.{}", group, name), category_named(group), p.gradient.offloaded ? state_home() : local_tier_,
                              4 * p.state.size(), Life::run),
                       Access::read);
    schedule_.state.push_back(std::move(held));
  }
  if (!unit_at(unit).learns()) return;
  if (!p.gradient.offloaded || p.storage.gradients_whole)
    buffer("gradients." + name, Category::gradients, p.storage.gradients_whole ? comm_tier_ : local_tier_,
           gradient_bytes(unit, p.gradient.held.size()), Life::run);
  if (p.gradient.offloaded)
    buffer("offloaded_gradients." + name, Category::gradients, below_, gradient_bytes(unit, p.owned.size()), Life::run);
}

void ScheduleBuilder::input(const std::string& name, Category category, std::int64_t bytes, std::int64_t slots) {
  schedule_.buffers[index(buffer(name, category, local_tier_, bytes, Life::run))].slots = slots;
  if (on_gpu()) schedule_.buffers[index(buffer(host_side(name), category, Tier::pinned, bytes, Life::run))].slots = slots;
}

Use ScheduleBuilder::slot(const std::string& name, const SegmentPass& p) const {
  const int id = named(name);
  return {id, 0, schedule_.buffers[index(id)].slot_bytes(), Access::read, true, shift_of(p)};
}

bool ScheduleBuilder::uses(ValueKind kind) const {
  return std::ranges::any_of(schedule_.segments, [&](const Segment& segment) {
    return std::ranges::any_of(segment.values, [&](const ValueInfo& v) { return v.kind == kind; });
  });
}

void ScheduleBuilder::emit_copy(const char* verb, const std::string& to, const std::string& from) {
  emit({.name = fmt::format("{} {}", verb, to), .op = Copy{}, .uses = {whole(named(to), Access::write), whole(named(from), Access::read)}});
}

void ScheduleBuilder::emit_upload(const std::vector<std::string>& names) {
  if (!on_gpu()) return;
  for (const std::string& name : names)
    if (by_name_.contains(name)) emit_copy("upload", name, host_side(name));
}

void ScheduleBuilder::emit_download(const std::string& name) {
  if (on_gpu()) emit_copy("download", host_side(name), name);
}

bool ScheduleBuilder::keeps_packed(const ValueInfo& v) const {
  return request_.training() && plan(layout_.find(v.name).unit).storage.parameters_whole;
}

void ScheduleBuilder::declare_packed() {
  std::set<std::string> seen;
  packed_.resize(layout_.units.size());
  for (const Segment& segment : schedule_.segments)
    for (const ValueInfo& v : segment.values) {
      if (v.kind != ValueKind::packed_weight || !keeps_packed(v) || !seen.insert(packed_name(v)).second) continue;
      buffer(packed_name(v), Category::packed, local_tier_, v.bytes, Life::run);
      packed_[index(layout_.find(v.name).unit)].push_back(&v);
    }
  if (deck_.kernels.pack_weights && request_.training() && seen.empty())
    fail(ExitCode::usage, "kernels.pack_weights = true, and this processor's {} product has no packed form: leave the key out",
         name_of(compute()));
}

std::string ScheduleBuilder::packed_name(const ValueInfo& v) {
  return fmt::format("packed.{}.{}", v.name, v.product.b_transposed ? "forward" : "backward");
}

void ScheduleBuilder::emit_pack(int unit) {
  for (const ValueInfo* v : packed_[index(unit)]) {
    const TensorRef ref = layout_.find(v->name);
    const Use weight{named("parameters." + unit_at(unit).name), compute_bytes(ref.offset), compute_bytes(ref.elements), Access::read};
    emit({.name = fmt::format("pack {} ({})", v->name, v->product.b_transposed ? "forward" : "backward"),
          .op = PackWeight{v->product},
          .uses = {whole(named(packed_name(*v)), Access::write), weight}});
  }
}

}  // namespace tessera
