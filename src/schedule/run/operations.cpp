#include "schedule/run/operations.hpp"

#include "kernels/elementwise/elementwise.hpp"
#include "kernels/fixed/fixed.hpp"
#include "kernels/fp8_history/fp8_history.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/newton_schulz/newton_schulz.hpp"
#include "kernels/quantize/quantize.hpp"
#include "kernels/router/router.hpp"
#include "kernels/signs/signs.hpp"
#include "kernels/step/step.hpp"
#include "kernels/sums/sums.hpp"

namespace tessera {
namespace {

using kernels::RunValues, kernels::StepInputs, kernels::StepReport, kernels::StepScalars;

template <class T = void>
T* at(const TaskRun& r, std::size_t i) {
  return static_cast<T*>(r.at[i]);
}

/// A task's uses as its code needs them beside their addresses.
struct Runner {
  const TaskBackend& backend;
  const TaskRun& r;

  kernels::Context context(std::span<std::byte> workspace = {}) const {
    const kernels::Backend where = info_of(r.task.lane).on_host ? kernels::Backend::host : backend.backend;
    return {workspace, backend.reproducible, where, backend.streams[static_cast<std::size_t>(r.task.lane)]};
  }
  std::int64_t bytes(std::size_t use) const { return r.task.uses[use].bytes; }

  /// Of the run's values, which the use may be without.
  const float* loss_scale(std::size_t use) const {
    const auto* run = at<const RunValues>(r, use);
    return run ? &run->loss_scale.value : nullptr;
  }

  void operator()(const RunPass& op) const {
    const SegmentPass& pass = backend.schedule->passes[static_cast<std::size_t>(op.pass)];
    std::array<Access, most_uses> access;
    for (std::size_t i = 0; i < r.task.uses.size(); ++i) access[i] = r.task.uses[i].access;
    const std::size_t last = pass.operands.size();
    pass.run(backend.schedule->segment_of(pass), r.at, {access.data(), last}, context({at<std::byte>(r, last), pass.workspace}),
             backend.calls ? std::span<double>((*backend.calls)[static_cast<std::size_t>(op.pass)]) : std::span<double>{},
             {.calls = op.beside, .multiprocessors = backend.communicators ? backend.communicators->blocks() : 0});
  }

  void operator()(const Collective& op) const {
    const bool sums = op.kind == CollectiveKind::reduce_scatter;
    run_collective(backend.communicators->at(r.task.lane, op.axes), op, at(r, 0), r.at.size() > 1 ? at(r, 1) : nullptr,
                   context(sums ? std::span{at<std::byte>(r, 2), static_cast<std::size_t>(bytes(2))} : std::span<std::byte>{}));
  }

  void operator()(const Transfer& op) const {
    Communicator& link = backend.communicators->link(r.task.lane, op.peer);
    op.sends ? link.send(at(r, 0), op.count, op.dtype, context()) : link.receive(at(r, 0), op.count, op.dtype, context());
  }

  void operator()(const AccumulateFixed& op) const {
    kernels::fixed_accumulate(context(), {.sum = at<std::int64_t>(r, 0),
                                          .x = at<float>(r, 1),
                                          .n = op.count,
                                          .faults = &at<StepScalars>(r, 2)->misfits,
                                          .limit = op.limit,
                                          .scale = loss_scale(3)});
  }

  void operator()(const Zero&) const {
    for (std::size_t i = 0; i < r.at.size(); ++i) kernels::fill_zero(context(), r.at[i], static_cast<std::size_t>(bytes(i)));
  }

  void operator()(const Add& op) const { kernels::add(context(), at(r, 0), at(r, 0), at(r, 1), op.count, op.dtype); }

  void operator()(const JoinSums&) const { kernels::join_sums(context(), at<StepScalars>(r, 0), at<StepScalars>(r, 1)); }

  void operator()(const CountFlags&) const { kernels::count_flags(context(), at<StepScalars>(r, 0), at<StepInputs>(r, 1)); }

  void operator()(const SumSquares& op) const {
    auto* scalars = at<StepScalars>(r, 1);
    const kernels::Context with_workspace = context({at<std::byte>(r, 2), static_cast<std::size_t>(bytes(2))});
    kernels::sum_of_squares(with_workspace, {.sum = &scalars->squares,
                                             .not_finite = &scalars->not_finite,
                                             .x = at(r, 0),
                                             .n = op.count,
                                             .dtype = op.dtype,
                                             .scale = loss_scale(3)});
  }

  void operator()(const FinishStep&) const {
    kernels::finish_step(context(), {.scalars = at<StepScalars>(r, 0),
                                     .inputs = at<StepInputs>(r, 1),
                                     .update = at<kernels::UpdateScalars>(r, 2),
                                     .report = at<StepReport>(r, 3),
                                     .run = at<RunValues>(r, 4)});
  }

  void operator()(const ScaleGradients&) const {
    kernels::scale_gradients(context(), {.scale = at<kernels::GradientScale>(r, 0),
                                         .scalars = at<StepScalars>(r, 1),
                                         .inputs = at<StepInputs>(r, 2),
                                         .run = at<RunValues>(r, 3)});
  }
  void operator()(const BeginStep&) const { kernels::begin_step(context(), at<StepScalars>(r, 0), at<StepInputs>(r, 1)); }

  /// Puts a use into the place that a kernel finds it at, for a piece of the op.
  void place(kernels::Update& update, const OptimizerStep& op, std::size_t use, std::size_t piece) const {
    const UpdateOperand& operand = op.update.uses[use].operand;
    const std::int64_t offset = op.pieces[piece].unit_offset - op.begin;
    switch (operand.kind) {
      case UpdateOperand::Kind::master:
        update.master = at<float>(r, use) + offset;
        return;
      case UpdateOperand::Kind::state:
        if (operand.of == kernels::Extent::row)
          update.lines.of_rows = at<float>(r, use) + op.lines[piece].before.rows;
        else if (operand.of == kernels::Extent::column)
          update.lines.of_columns = at<float>(r, use) + op.lines[piece].before.columns;
        else
          update.state[operand.row] = at<std::byte>(r, use) + kernels::state_bytes(operand.type, offset);
        return;
      case UpdateOperand::Kind::gradient:
        update.grad = at<std::byte>(r, use) + offset * static_cast<std::int64_t>(size_of(update.grad_dtype));
        return;
      case UpdateOperand::Kind::copy:
        update.param = at<std::byte>(r, use) + offset * static_cast<std::int64_t>(size_of(update.param_dtype));
        return;
      case UpdateOperand::Kind::values:
        update.scalars = at<kernels::UpdateScalars>(r, use);
        return;
      case UpdateOperand::Kind::sums:
        update.sums = at<kernels::FixedSum>(r, use) + op.pieces[piece].slot * op.sums;
        return;
      case UpdateOperand::Kind::lines:
        update.lines.sums = at<std::int64_t>(r, use) + op.lines[piece].word;
        return;
      case UpdateOperand::Kind::signs:
      case UpdateOperand::Kind::mean_signs:
        fail(ExitCode::internal, "{} has signs among its operands", r.task.name);
      case UpdateOperand::Kind::matrices:
        if (r.task.uses[use].access == Access::read)
          update.grad = at<bf16>(r, use) + offset, update.grad_dtype = DType::bf16;
        else
          update.param = at<bf16>(r, use) + offset, update.param_dtype = DType::bf16;
        return;
    }
  }

  void operator()(const OptimizerStep& op) const {
    for (std::size_t i = 0; i < op.pieces.size(); ++i) {
      kernels::Update update{.state_type = op.update.state_type,
                             .stochastic = op.update.stochastic,
                             .grad_dtype = op.gradient,
                             .n = op.pieces[i].elements,
                             .rate_scale = op.rates[i].learning_rate_scale,
                             .weight_decay = op.rates[i].weight_decay};
      if (op.parameters != DType::f32) update.param_dtype = op.parameters;  // else there is no copy
      if (op.sums > 0) update.tensor_elements = op.tensor_elements[i];
      if (!op.lines.empty()) update.lines = op.lines[i].lines;
      for (std::size_t use = 0; use < op.update.uses.size(); ++use) place(update, op, use, i);
      op.update.code(context(), update);
    }
  }

  void operator()(const Orthogonalize& op) const {
    auto *from = at<bf16>(r, 0), *to = bytes(1) > 0 ? at<bf16>(r, 1) : from;
    for (const Orthogonalize::Matrix& m : op.matrices)
      kernels::newton_schulz(context({at<std::byte>(r, 2), static_cast<std::size_t>(bytes(2))}), {.out = to + m.to,
                                                                                                  .x = from + m.from,
                                                                                                  .rows = m.rows,
                                                                                                  .columns = m.columns,
                                                                                                  .steps = op.steps,
                                                                                                  .scale = m.scale,
                                                                                                  .parts = m.parts,
                                                                                                  .parts_of_columns = m.parts_of_columns,
                                                                                                  .part_step = op.part_step});
  }
  void operator()(const CopyRuns& op) const {
    const auto size = static_cast<std::int64_t>(size_of(op.dtype));
    for (const CopyRuns::Run& run : op.runs)
      kernels::copy(context(), at<std::byte>(r, 0) + run.to * size, at<std::byte>(r, 1) + run.from * size,
                    static_cast<std::size_t>(run.elements * size));
  }

  void operator()(const BalanceRouters& op) const {
    const auto* loads = reinterpret_cast<const std::int64_t*>(at<kernels::RouterTotals>(r, 1) + 1);
    for (const BalanceRouters::Run& run : op.runs)
      kernels::balance_routers(context(), {.biases = at<float>(r, 0) + run.offset,
                                           .loads = loads + run.layer * op.experts,
                                           .scalars = at<kernels::UpdateScalars>(r, 2),
                                           .rate = op.rate,
                                           .layers = run.layers,
                                           .E = op.experts,
                                           .stride = op.stride});
  }

  void operator()(const UpdateFp8Scales& op) const {
    kernels::fp8_histories(context(), {.history = at<float>(r, 0),
                                       .multipliers = at<float>(r, 1),
                                       .largest = at<float>(r, 2),
                                       .matrices = op.matrices,
                                       .length = op.length,
                                       .margin = op.margin,
                                       .enters = op.enters});
  }

  void operator()(const EncodeRuns& op) const {
    for (const auto& [run, multiplier] : op.runs) {
      float* largest = at<float>(r, 3);
      kernels::encode_fp8_run(context(), {.bytes = at<std::byte>(r, 0),
                                          .x = at<bf16>(r, 1),
                                          .run = run,
                                          .multiplier = at<float>(r, 2) + multiplier,
                                          .largest = largest ? largest + multiplier : nullptr});
    }
  }
  void operator()(const DecodeRuns& op) const {
    kernels::decode_fp8_runs(context(), {.x = at<bf16>(r, 0), .bytes = at<std::byte>(r, 1), .runs = op.runs});
  }
  void operator()(const FindMagnitudes& op) const {
    kernels::fill_zero(context(), r.at[0], static_cast<std::size_t>(4 * op.count));
    for (const auto& [run, number] : op.runs)
      if (run.coded) kernels::find_magnitude(context(), at<float>(r, 0) + number, at<bf16>(r, 1) + run.element, run.elements);
  }
  void operator()(const ScaleMatrices& op) const { kernels::fp8_multipliers(context(), at<float>(r, 0), op.count); }

  void operator()(const PackWeight& op) const {
    kernels::Gemm product = op.product;
    product.b = at(r, 1);
    if (r.at[2]) product.fp8->b.delayed = {at<float>(r, 2), at<float>(r, 3)};
    kernels::gemm_pack_b(context(), at(r, 0), product);
  }

  void operator()(const Copy&) const { kernels::copy(context(), at(r, 0), at(r, 1), static_cast<std::size_t>(bytes(0))); }

  /// Uses are pairs of a target and a source.
  std::pair<std::array<Disk::Move, 8>, std::size_t> moves() const {
    std::pair<std::array<Disk::Move, 8>, std::size_t> found{};
    for (std::size_t i = 0; i + 1 < r.task.uses.size(); i += 2)
      found.first.at(found.second++) = {at<std::byte>(r, i), at<std::byte>(r, i + 1), bytes(i)};
    return found;
  }
  void operator()(const ReadDisk&) const {
    const auto& [all, count] = moves();
    backend.disk->read({all.data(), count}, r.task.name);
  }
  void operator()(const WriteDisk&) const {
    const auto& [all, count] = moves();
    backend.disk->write({all.data(), count}, r.task.name);
  }

  void operator()(const Encode& op) const {
    kernels::encode_blocks(context(), {.blocks = at<std::byte>(r, 0), .x = at(r, 1), .dtype = op.from, .n = op.count, .wire = op.wire});
  }
  void operator()(const EncodeWithError& op) const {
    const auto* run = at<const RunValues>(r, 3);
    kernels::encode_with_error(context(), {.blocks = at<std::byte>(r, 0),
                                           .error = at<std::byte>(r, 2),
                                           .x = at<float>(r, 1),
                                           .n = op.count,
                                           .wire = op.wire,
                                           .beta = op.beta,
                                           .updates = op.first ? &run->applied_updates : nullptr,
                                           .interval = op.interval,
                                           .loss_scale = op.scaled ? &run->loss_scale.value : nullptr});
  }
  void operator()(const Decode& op) const {
    kernels::decode_blocks(context(), {.x = at(r, 0), .blocks = at<std::byte>(r, 1), .dtype = op.to, .n = op.count, .wire = op.wire});
  }
  void operator()(const SumBlocks& op) const {
    kernels::sum_blocks(context(), {.sum = at<float>(r, 0),
                                    .blocks = at<std::byte>(r, 1),
                                    .n = op.count,
                                    .members = op.members,
                                    .accumulate = op.accumulate,
                                    .wire = op.wire});
  }

  void operator()(const PackSigns& op) const {
    auto* sums = at<kernels::FixedSum>(r, 2);
    auto* words = at<std::uint32_t>(r, 0);
    kernels::fill_zero(context(), sums, static_cast<std::size_t>(bytes(2)));
    for (const SignBlocks::Tensor& t : op.blocks.tensors) {
      const float* x = bytes(3) > 0 ? at<float>(r, 3) + t.offset : nullptr;
      float* error = at<float>(r, 1) + (op.of_mean ? t.mean : t.offset);
      const std::int64_t n = op.of_mean ? t.mine : t.elements;
      kernels::sum_sign_squares(context(), {.sum = sums, .x = x, .error = error, .n = n});
      kernels::pack_signs(context(), {.words = words + t.word,
                                      .scale = reinterpret_cast<float*>(words + t.scale),
                                      .x = x,
                                      .error = error,
                                      .sum = sums++,
                                      .n = n,
                                      .parts = op.of_mean ? 1 : op.blocks.ranks,
                                      .part = t.part,
                                      .step = op.blocks.words});
    }
  }
  void operator()(const SumSigns& op) const {
    const auto* words = at<const std::uint32_t>(r, 1);
    for (const SignBlocks::Tensor& t : op.blocks.tensors)
      kernels::sum_signs(context(), {.error = at<float>(r, 0) + t.mean,
                                     .words = words + t.word,
                                     .scale = reinterpret_cast<const float*>(words + t.scale),
                                     .n = t.mine,
                                     .members = static_cast<int>(op.blocks.ranks),
                                     .step = op.blocks.words});
  }
  void operator()(const UnpackSigns& op) const {
    const auto* words = at<const std::uint32_t>(r, 1);
    for (const SignBlocks::Tensor& t : op.blocks.tensors)
      kernels::unpack_signs(context(), {.x = at<float>(r, 0) + t.offset,
                                        .words = words + t.word,
                                        .scale = reinterpret_cast<const float*>(words + t.scale),
                                        .n = t.elements,
                                        .part = t.part,
                                        .step = op.blocks.words});
  }

  void operator()(const Round& op) const {
    if (op.from != DType::i64) return kernels::cast(context(), at(r, 0), op.to, at(r, 1), op.from, op.count);
    TESSERA_REQUIRE(op.to == DType::bf16, "fixed-point sums in {}", name_of(op.to));
    kernels::fixed_to_bf16(context(), at<bf16>(r, 0), at<std::int64_t>(r, 1), op.count);
  }
};

}  // namespace

void TaskBackend::operator()(const TaskRun& run) const {
  std::visit(Runner{*this, run}, run.task.op);
  if (witness && witness->looks()) witness->look(run);
}

void run_collective(Communicator& group, const Collective& op, void* to, const void* from, const kernels::Context& context) {
  switch (op.kind) {
    case CollectiveKind::all_gather:
      return group.all_gather(to, from, op.count, op.dtype, op.stride, context);
    case CollectiveKind::reduce_scatter:
      return group.reduce_scatter(to, from, op.count, op.dtype, op.stride, op.accumulate, context);
    case CollectiveKind::all_reduce:
      return group.all_reduce(to, op.count, op.dtype, op.reduction, context);
    case CollectiveKind::all_to_all:
      return group.all_to_all(to, from, op.count, op.dtype, op.times, context);
    case CollectiveKind::rotate:
      return group.rotate(to, from, op.count, op.dtype, op.by, context);
  }
}

}  // namespace tessera
