#include <algorithm>

#include "kernels/step/step.hpp"
#include "kernels/sums/sums.hpp"
#include "schedule/build/schedule_builder.hpp"

namespace tessera {

void ScheduleBuilder::emit_epilogue() {
  for (int u = 0; u < units(); ++u) emit_norm(u);
  emit_finish(false);
  for (int u = 0; u < units(); ++u) {
    emit_optimizer(u);
    emit_publish_gather(u);
  }
  for (int u = 0; u < units(); ++u) emit_pack(u);
}

void ScheduleBuilder::emit_norm(int unit) {
  const UnitStorage st = storage(unit);
  const std::int64_t S = shard(unit), begin = st.gradients_whole ? request_.rank * S : 0;
  const std::size_t bytes = kernels::sum_of_squares_workspace_bytes({.n = S, .dtype = gradient_type()}, schedule_.shape.backend);
  const int workspace =
      buffer("workspace.norm", Category::workspace, local_tier_, static_cast<std::int64_t>(std::max<std::size_t>(bytes, 64)), false);
  emit({.name = "norm " + unit_at(unit).name,
        .op = SumSquares{S, gradient_type()},
        .uses = {{named("gradients." + unit_at(unit).name), gradient_bytes(begin), gradient_bytes(S), Access::read, 0},
                 whole(named("scalars"), Access::add),
                 {workspace, 0, static_cast<std::int64_t>(bytes), Access::write, 0}}});
}

void ScheduleBuilder::emit_finish(bool evaluation) {
  const Use scalars = whole(named("scalars"), Access::add), inputs = whole(named("inputs"), Access::read);
  emit({.name = "count flags", .op = CountFlags{}, .uses = {scalars, inputs}});
  if (request_.ranks > 1)
    emit({.name = "all-reduce loss, norm and flags",
          .op = AllReduce{kernels::step_sums, DType::i64},
          .lane = Lane::reduce,
          .uses = {{named("scalars"), 0, 8 * kernels::step_sums, Access::add, 0}}});
  emit({.name = evaluation ? "finish evaluation" : "norm, clip factor and learning rate",
        .op = FinishStep{},
        .uses = {whole(named("scalars"), Access::read), inputs, evaluation ? absent() : whole(named("adamw"), Access::write),
                 whole(named("report"), Access::write)}});
  emit_download("report");
}

void ScheduleBuilder::emit_optimizer(int unit) {
  const std::string& name = unit_at(unit).name;
  const Range owned = state(unit);
  const std::int64_t gradient_origin = storage(unit).gradients_whole ? 0 : owned_range(layout_, unit, request_.rank).begin;
  const bool copy = compute() != DType::f32;
  const std::int64_t group = std::max<std::int64_t>(shard_block, deck_.zero.sub_group_size / shard_block * shard_block);
  for (std::int64_t begin = owned.begin; begin < owned.end; begin += group) {
    const std::int64_t end = std::min(owned.end, begin + group), n = end - begin, at = begin - owned.begin;
    OptimizerStep op{
        .gradient = gradient_type(), .copy = copy, .begin = begin, .pieces = pieces_in(unit_at(unit), begin, end), .decay = {}};
    for (const Piece& piece : op.pieces)
      op.decay.push_back(layout_.table[index(piece.parameter)].decay ? static_cast<float>(deck_.optimizer.weight_decay) : 0.0f);
    const int parameters = named("parameters." + name);
    const Use master = copy ? Use{named("master." + name), 4 * at, 4 * n, Access::add, 0}
                            : Use{parameters, parameter_offset(unit) + 4 * at, 4 * n, Access::add, 0};
    std::vector<Use> uses{master,
                          {named("adam_m." + name), 4 * at, 4 * n, Access::add, 0},
                          {named("adam_v." + name), 4 * at, 4 * n, Access::add, 0},
                          {named("gradients." + name), gradient_bytes(begin - gradient_origin), gradient_bytes(n), Access::read, 0},
                          whole(named("adamw"), Access::read)};
    if (copy) uses.push_back({parameters, parameter_offset(unit) + compute_bytes(at), compute_bytes(n), Access::write, 0});
    emit({.name = "optimizer " + name, .op = std::move(op), .uses = std::move(uses)});
  }
}

void ScheduleBuilder::emit_publish_gather(int unit) {
  const UnitStorage st = storage(unit);
  if (!request_.training || request_.ranks == 1 || st.optimizer_whole || !st.parameters_whole) return;
  const std::int64_t S = shard(unit);
  const int parameters = named("parameters." + unit_at(unit).name);
  for (const Range& cut : cut_shard(S, request_.ranks, deck_.zero.allgather_bucket_size))
    emit({.name = "gather " + unit_at(unit).name + " (updated)",
          .op = Gather{cut.size(), S, compute()},
          .lane = Lane::gather,
          .uses = {{parameters, compute_bytes(cut.begin), compute_bytes((request_.ranks - 1) * S + cut.size()), Access::write, 0},
                   {parameters, compute_bytes(request_.rank * S + cut.begin), compute_bytes(cut.size()), Access::read, 0}},
          .bytes_moved = static_cast<double>(compute_bytes(cut.size())) * (request_.ranks - 1)});
}

}  // namespace tessera
