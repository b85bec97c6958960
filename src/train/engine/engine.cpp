#include "train/engine/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "deck/ramp.hpp"
#include "io/checkpoint/finite.hpp"
#include "io/checkpoint/state_sum.hpp"
#include "kernels/cuda/devices.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/fixed/fixed.hpp"
#include "kernels/group_losses/group_losses.hpp"
#include "kernels/rope/rope.hpp"
#include "optimizer/learning_rate.hpp"
#include "schedule/trace/timeline_summary.hpp"
#include "topology/node.hpp"
#include "train/engine/device.hpp"
#include "train/engine/same_places.hpp"

namespace tessera {
namespace {

kernels::RopeMethod rope_method(RopeMode scaling) {
  using enum kernels::RopeMethod;
  switch (scaling) {
    case RopeMode::none:
      return none;
    case RopeMode::llama3:
      return llama3;
    case RopeMode::linear:
      return linear;
    case RopeMode::dynamic:
      return dynamic;
    case RopeMode::yarn:
      return yarn;
    case RopeMode::longrope:
      return longrope;
  }
  fail(ExitCode::internal, "model.rope_scaling {} has no implementation", static_cast<int>(scaling));
}

/// Of each tier the most that a plan has.
template <class F>
TierBytes most_of(const std::vector<RunPlan>& plans, const F& bytes) {
  TierBytes most{};
  for (const RunPlan& plan : plans) raise(most, bytes(plan));
  return most;
}

/// What a pass has left joins the sums, and is replaced by them.
void add_up(std::vector<std::int64_t>& sums, std::span<std::int64_t> of_pass) {
  sums.resize(of_pass.size());
  for (std::size_t i = 0; i < sums.size(); ++i) of_pass[i] = sums[i] += of_pass[i];
}

}  // namespace

Engine::Engine(RunPlan plan, const EngineOptions& options, RankLinks links)
    : Engine(
          [&] {
            std::vector<RunPlan> alone;
            alone.push_back(std::move(plan));
            return alone;
          }(),
          options, std::move(links)) {}

Engine::Engine(std::vector<RunPlan> phases, const EngineOptions& options, RankLinks links)
    : phases_(std::move(phases)),
      room_(most_of(phases_, [](const RunPlan& plan) { return plan.memory.bytes; })),
      used_(most_of(phases_, [](const RunPlan& plan) { return touched_bytes(plan.schedule, plan.memory); })),
      plan_(std::move(phases_.front())),
      options_(options),
      links_(std::move(links)),
      memory_(plan_, room_, links_.node, links_.communicators),
      state_(plan_, memory_),
      optimizers_(chosen_optimizers(plan_.request.deck.optimizer)),
      counts_targets_(plan_.request.group(axes({Axis::tp})).rank == 0) {
  for (std::size_t k = 1; k < phases_.size(); ++k) require_same_places(plan_, phases_[k]);
  if (plan_.request.training()) TESSERA_REQUIRE(used_ == room_, "the bytes that tasks use differ from the planned ones");
  const bool on_gpu = schedule().shape.backend == kernels::Backend::cuda;
  if (on_gpu) clear_device();
  make_ready();
  // A rank that meets others loads all kernels before one of them waits on its GPU: loading may wait for the whole device.
  const bool meets = !links_.communicators.all().empty();
  if (!on_gpu || !plan_.request.training() || (!meets && options_.kernel_choices.empty())) return;
  for (std::size_t last = phases_.size(); last-- > 0;) {
    if (last != phase_) begin_in(last);
    warm_up(options_.kernel_choices);
  }
  fill_inputs();  // which the last of these cleared
}

void Engine::make_ready() {
  const Deck& deck = plan_.request.deck;
  {
    const std::lock_guard lock(changes_);
    executor_.reset();
    witness_ = std::make_unique<Witness>(schedule(), [this](void* to, const void* from, std::int64_t bytes) {
      wait_for_device();
      memory_.copy(to, from, bytes);
    });
    call_seconds_.clear();
    for (const SegmentPass& pass : schedule().passes) call_seconds_.emplace_back(pass.calls.size());
    executor_ = make_executor(schedule(), plan_.memory, memory_.bases(), options_.lanes, deck.kernels.cuda_graph,
                              {.schedule = &schedule(),
                               .communicators = &links_.communicators,
                               .disk = memory_.disk(),
                               .reproducible = deck.run.reproducible,
                               .backend = schedule().shape.backend,
                               .witness = witness_.get(),
                               .calls = options_.times_calls ? &call_seconds_ : nullptr,
                               .poison = options_.poison});
  }
  longest_ = 0;
  for (std::size_t i = 0; i < inputs_.size(); ++i) inputs_[i] = memory_.host_side(input_rows[i].name);
  fill_inputs();
}

void Engine::fill_inputs() const {
  std::ranges::fill(host_values<float>("row_weights"), 1.0f);
  std::ranges::fill(host_values<std::int64_t>("token_numbers"), -1);
  fill_rope_tables();
  if (!schedule().shape.documents) fill_positions();
}

void Engine::begin_in(std::size_t phase) {
  if (phase == phase_) return;
  {
    const std::lock_guard lock(changes_);
    executor_.reset();
  }
  TierBytes kept = plan_.memory.state;
  for (std::size_t t = 0; t < tier_count; ++t) kept[t] = std::min(kept[t], phases_[phase].memory.state[t]);
  phases_[phase_] = std::move(plan_);
  plan_ = std::move(phases_[phase]);
  phase_ = phase;
  memory_.clear_from(kept);
  make_ready();
}

void Engine::enter(std::size_t phase) {
  if (phase == phase_) return;
  TESSERA_REQUIRE(copy_ != StateCopy::awaited, "a phase starts while its state is still to be copied");
  settle();
  const std::vector<io::CheckpointValue> values = state_.values().saved();
  begin_in(phase);
  state_.values().set(values);
  publish();
}

void Engine::turn_by(std::int64_t longest) {
  if (std::exchange(longest_, longest) != longest) fill_rope_tables();
}

void Engine::fill_rope_tables() const {
  for (std::size_t i = 0; i < schedule().shape.rotation.tables.size(); ++i) fill_rope_table(static_cast<int>(i));
}

void Engine::fill_rope_table(int rotation) const {
  const ModelKeys& m = plan_.request.deck.model;
  const ModelShape& s = schedule().shape;
  const Angles& of = s.rotation.tables[static_cast<std::size_t>(rotation)];
  const TextSize& text = plan_.request.text;
  kernels::RopeScaling scaling{.method = rope_method(of.scaled ? m.rope_scaling : RopeMode::none),
                               .factor = m.rope_factor,
                               .low_freq_factor = m.rope_low_freq_factor,
                               .high_freq_factor = m.rope_high_freq_factor,
                               .original_context = m.rope_original_context,
                               .beta_fast = m.rope_beta_fast,
                               .beta_slow = m.rope_beta_slow,
                               .attention_factor = m.rope_attention_factor,
                               .truncate = m.rope_truncate,
                               .sequence = longest_ > 0 ? longest_ : plan_.request.deck.batch.sequence_length,
                               .short_factors = m.rope_short_factors,
                               .long_factors = m.rope_long_factors};
  const std::span<float> table = host_values<float>(name_of_rotation("rope", rotation));
  if (of.still) {  // cosines and sines in turns
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = i % 2 == 0 ? 1.0f : 0.0f;
    return;
  }
  // Of a text it has as many rows as there may be tokens.
  std::vector<Range> rows = rotated_positions(s, plan_.request.group(axes({Axis::cp})).rank);
  if (rows.size() == 1) rows[0].end = rows[0].begin + static_cast<std::int64_t>(table.size()) / s.rotated_features();
  float* at = table.data();
  if (text.capacity > 0 && (scaling.method == kernels::RopeMethod::dynamic || scaling.method == kernels::RopeMethod::longrope)) {
    // A prompt is rotated as a whole, and each token after it as the last one of the text up to it.
    scaling.sequence = text.prompt;
    kernels::rope_table(at, 0, text.prompt, s.rotated_features(), of.theta, scaling);
    for (std::int64_t position = text.prompt; position < rows[0].end; ++position) {
      scaling.sequence = position + 1;
      kernels::rope_table(at + position * s.rotated_features(), position, 1, s.rotated_features(), of.theta, scaling);
    }
    return;
  }
  for (const Range& part : rows) {
    kernels::rope_table(at, part.begin, part.size(), s.rotated_features(), of.theta, scaling);
    at += part.size() * s.rotated_features();
  }
}

void Engine::initialise_weights() {
  state_.initialise();
  publish();
}

void Engine::set_weights(const std::function<void(const Parameter&, std::int64_t, std::span<float>)>& value) {
  state_.set(value);
  publish();
}

std::vector<Range> Engine::positions() const { return positions_of(schedule().shape, plan_.request.group(axes({Axis::cp})).rank); }

void Engine::fill_positions() const {
  const std::span<std::int32_t> all = host_values<std::int32_t>("positions");
  if (all.empty()) return;
  const ModelShape& s = schedule().shape;
  const std::vector<Range> here = positions();
  const std::int64_t slots = std::ssize(all) / s.tokens(), rows = s.tokens() / s.B, T = inside_attention(s).T;
  for (std::int64_t m = 0, i = 0; m < slots; ++m) {
    const std::span<const std::int32_t> starts = s.documents ? document_starts(m) : std::span<const std::int32_t>{};
    for (std::int64_t row = 0; row < s.B; ++row)
      for (const Range& part : here)
        for (std::int64_t t = part.begin; t < part.end; ++t, ++i) {
          const std::int64_t of_attention = s.ring ? i % rows : t;
          all[static_cast<std::size_t>(i)] =
              static_cast<std::int32_t>(starts.empty() ? t : of_attention - starts[static_cast<std::size_t>(row * T + of_attention)]);
        }
  }
}

namespace {
/// The loss is a mean over pairs: they are the step's weight.
void count_pairs(std::span<const std::int32_t> sequences, kernels::StepInputs& inputs) {
  for (std::size_t chosen = 0; chosen + 1 < sequences.size(); chosen += 2) {
    if (sequences[chosen] == 0 || sequences[chosen + 1] == 0) continue;
    inputs.weight.add(1.0);
    inputs.chosen_targets += sequences[chosen];
  }
}
}  // namespace

void Engine::count_targets(std::int64_t micro_batches, kernels::StepInputs& inputs) const {
  const bool pairs = schedule().shape.preference.on;
  for (std::int64_t m = 0; m < micro_batches && counts_targets_; ++m)
    for (const float weight : row_weights(m))
      if (weight != 0 && (pairs || inputs.weight.add(static_cast<double>(weight)))) ++inputs.targets;
  if (pairs && counts_targets_ && plan_.request.group(axes({Axis::cp})).rank == 0)
    for (std::int64_t m = 0; m < micro_batches; ++m) count_pairs(input<std::int32_t>("sequence_counts", m), inputs);
}

kernels::StepInputs Engine::inputs_of_step(const StepOptions& options) {
  const Deck& deck = plan_.request.deck;
  const OptimizerKeys& o = deck.optimizer;
  const LossScaleKeys& scale = deck.precision.loss_scale;
  const auto tokens = static_cast<double>(deck.batch.global * deck.batch.sequence_length);
  const std::int64_t updates = run_values().applied_updates;
  learning_rate_ = scheduled_update(deck, updates).learning_rate;
  kernels::StepInputs inputs{.weight = {},
                             .document_squares = options.counts.document_squares,
                             .padding = options.counts.padding,
                             .tokens = tokens,
                             .learning_rate = static_cast<float>(learning_rate_),
                             .clipping = o.gradient_clipping,
                             .terms = sends_signs(o) ? static_cast<double>(data().size) : 1,
                             .samples = samples_of_step(deck.batch),
                             .scaling = {.on = deck.precision.scales_loss(),
                                         .fixed = scale.fixed > 0,
                                         .refills = scale.consecutive_hysteresis,
                                         .minimum = static_cast<float>(scale.minimum),
                                         .window = scale.window,
                                         .hysteresis = scale.hysteresis},
                             .guard = {.skip_limit = static_cast<std::int32_t>(deck.guards.skip_limit),
                                       .window = static_cast<std::int32_t>(deck.guards.steps_judged_by()),
                                       .skips_spikes = deck.guards.spike >= SpikeMode::skip,
                                       .z = static_cast<float>(deck.guards.threshold)},
                             .rehearsal = options.rehearsal,
                             .scaled_gradients = deck.precision.scales_loss() && !deck.run.reproducible,
                             .stop = options.stop};
  inputs.optimizers = 0;
  for (const ChosenOptimizer& chosen : optimizers_) {
    const ScheduledUpdate scheduled = scheduled_update(deck, chosen.keys, updates);
    inputs.optimizer[inputs.optimizers++] = {.bias_correction1 = static_cast<float>(scheduled.correction1),
                                             .bias_correction2 = static_cast<float>(scheduled.correction2),
                                             .beta1 = static_cast<float>(scheduled.beta1),
                                             .beta2 = static_cast<float>(scheduled.beta2),
                                             .eps = static_cast<float>(chosen.keys.eps),
                                             .momentum = static_cast<float>(chosen.keys.momentum),
                                             .least_trust = static_cast<float>(chosen.keys.min_trust_ratio),
                                             .most_trust = static_cast<float>(chosen.keys.max_trust_ratio),
                                             .update_clipping = static_cast<float>(chosen.keys.update_clipping)};
  }
  count_targets(accumulation(), inputs);
  if (schedule().shape.documents) fill_positions();
  return inputs;
}

StepReport Engine::step(const StepOptions& options) {
  value<kernels::StepInputs>("inputs") = inputs_of_step(options);
  for (std::int64_t m = 0; m < accumulation(); ++m) set_weight(m, micro_batch_at(plan_.request.deck, data().size, data().rank, m) ? 1 : 0);
  const bool late = schedule().updates_late();
  if (options.rehearsal) settle();
  const bool copies = !options.rehearsal && copy_ == StateCopy::awaited;
  if (copies) copy_ = StateCopy::made;
  run_step(copies ? ProgramKind::saving : late && !pending_ ? ProgramKind::first : ProgramKind::train, options.timeline);
  const StepReport report = value<StepReport>("report");
  pending_ = late && !report.not_finite && !options.rehearsal;
  return report;
}

Engine::OwnSums Engine::own_sums() const {
  kernels::StepScalars scalars;
  memory_.copy(&scalars, memory_.address(schedule().find_buffer("scalars")), sizeof scalars);
  return {.loss = scalars.own_loss, .squares = scalars.own_squares, .not_finite = scalars.not_finite != 0 || scalars.misfits != 0};
}

CallSeconds Engine::take_call_seconds() {
  CallSeconds taken = call_seconds_;
  for (auto& of_pass : call_seconds_) std::ranges::fill(of_pass, 0.0);
  return taken;
}

std::optional<Finding> Engine::find_not_finite() {
  witness_->begin();
  Timeline timeline;  // a graph would hide its tasks
  step({.rehearsal = true, .timeline = &timeline});
  return witness_->end();
}

std::string Engine::state_not_finite() const {
  return io::find_not_finite(checkpoint_layout(), plan_.request.rank, plan_.request.mesh.ranks(), state_.checkpoint_slices());
}

std::string Engine::digest_of_state(const World& world) {
  settle();
  io::StateSum sum = io::sum_of_state(checkpoint_layout(), plan_.request.rank, plan_.request.mesh.ranks(), state_.checkpoint_slices());
  for (std::uint64_t& half : sum) half = static_cast<std::uint64_t>(world.sum(static_cast<std::int64_t>(half)));
  return Hash128{.high = sum[0], .low = sum[1]}.hex();
}

std::vector<io::CheckpointValue> Engine::saved_run_values() const {
  std::vector<io::CheckpointValue> values = state_.values().saved();
  for (io::CheckpointValue& value : evaluations_.values()) values.push_back(std::move(value));
  return values;
}

void Engine::leave_out(std::int64_t samples) {
  if (samples == 0) return;
  const auto whole = [](const char* name, std::int64_t number) {
    return io::CheckpointValue{.name = name, .integer = true, .number = static_cast<double>(number)};
  };
  const kernels::RunValues& run = run_values();
  state_.values().set({whole("sample_cursor", run.sample_cursor + samples), whole("samples_left_out", run.samples_left_out + samples)});
  publish();
}

void Engine::run_step(ProgramKind kind, Timeline* timeline) {
  // What steps wait for copies is known from their tasks' times alone.
  waited_for_copies_ = 0;
  if (!timeline && kind != ProgramKind::saving) return executor_->run(kind);
  Timeline done = executor_->run_traced(kind);
  if (kind == ProgramKind::saving) waited_for_copies_ = seconds_alone(done, {Lane::snapshot, Lane::host_snapshot});
  if (timeline) *timeline = std::move(done);
}

void Engine::copy_with_next_step() {
  TESSERA_REQUIRE(!pending_ && schedule().has(ProgramKind::saving));
  copy_ = StateCopy::awaited;
  if (plan_.request.deck.checkpoint.neighbour_every > 0) value<std::int64_t>("copies.awaited") = 1;
}

bool Engine::copies_are_made() const {
  return std::atomic_ref(const_cast<std::int64_t&>(value<std::int64_t>("copies.awaited"))).load(std::memory_order_acquire) == 0;
}

void Engine::settle() {
  if (std::exchange(pending_, false)) executor_->run(ProgramKind::update);
}

const ModelState& Engine::state() const {
  TESSERA_REQUIRE(!pending_, "the state is read while an update is pending");
  return state_;
}

StepReport Engine::evaluate(const EvaluationPass& pass) {
  settle();
  kernels::StepInputs& inputs = value<kernels::StepInputs>("inputs") =
      kernels::StepInputs{.weight = {}, .padding = pass.padding, .tokens = static_cast<double>(pass.tokens), .stop = pass.stop};
  count_targets(plan_.request.evaluation_micro_batches, inputs);
  if (schedule().shape.documents) fill_positions();
  executor_->run(ProgramKind::evaluate);
  kernels::StepScalars scalars;
  memory_.copy(&scalars, memory_.address(schedule().find_buffer("scalars")), sizeof scalars);
  if (!pass.goes_on) evaluated_ = {};
  StepReport& report = value<StepReport>("report");
  StepReport& all = evaluated_.report;
  evaluated_.loss.add(scalars.loss), evaluated_.weight.add(scalars.weight);
  all.targets += report.targets, all.tokens += report.tokens, all.document_squares += report.document_squares;
  all.not_finite |= report.not_finite, all.overflow |= report.overflow;
  all.loss_sum = evaluated_.loss.value(), all.weight = evaluated_.weight.value(), all.stop = report.stop;
  all.loss = all.targets > 0 ? all.loss_sum / all.weight : 0;
  report = all;
  add_up(evaluated_.groups, host_values<std::int64_t>("group_losses"));
  add_up(evaluated_.preferences, host_values<std::int64_t>("preference"));
  add_up(evaluated_.routers, host_values<std::int64_t>("router"));
  return report;
}

std::optional<double> Engine::loss_of(std::string_view tower) const {
  if (schedule().shape.preference.on) return {};  // it makes log-probabilities of texts
  const std::span<const StepReport> report = host_values<StepReport>(fmt::format("{}.report", tower));
  return report.empty() ? std::nullopt : std::optional(report.front().loss);
}

std::optional<kernels::PreferenceTotals> Engine::preference_totals() const {
  const auto totals = host_values<kernels::PreferenceTotals>("preference");
  return totals.empty() ? std::nullopt : std::optional(totals.front());
}

std::vector<GroupLoss> Engine::group_losses() const {
  std::vector<GroupLoss> losses;
  for (const kernels::GroupTotals& group : host_values<kernels::GroupTotals>("group_losses"))
    losses.push_back({.sum = group.loss.value(), .weight = group.weight.value(), .targets = group.targets});
  return losses;
}

std::optional<RouterFigures> Engine::router_figures() const {
  const ModelShape& s = schedule().shape;
  if (s.router.E == 0) return {};
  const std::span<const std::int64_t> sums = host_values<std::int64_t>("router");
  kernels::RouterTotals totals;
  std::memcpy(static_cast<void*>(&totals), sums.data(), sizeof totals);
  return figures_of(totals, sums.subspan(kernels::router_sums), s, value<StepReport>("report").tokens);
}

void Engine::add_under_way(RankWork& work) const {
  const std::lock_guard lock(changes_);
  if (!executor_) {
    work.beside = "the change of a phase";
    return;
  }
  const LanePositions& at = executor_->under_way();
  work.program = at.program();
  work.tasks = at.tasks();
  if (at.moved() > 0) work.still = std::min(work.still, std::max(0.0, now_seconds() - at.moved()));
  if (!work.tasks.empty()) work.beside = memory_.disk() ? memory_.disk()->under_way() : "";
}

std::vector<float> Engine::gradient_of(const std::string& tensor) const {
  const TensorRef ref = layout().find_alone(tensor);
  const int buffer = schedule().find_buffer("gradients." + layout().units[static_cast<std::size_t>(ref.unit)].name);
  const Deck& deck = plan_.request.deck;
  const bool rounded = deck.precision.gradients == DType::bf16;
  const DType type = deck.run.reproducible && !rounded ? DType::i64 : deck.precision.gradients;
  const auto size = static_cast<std::int64_t>(size_of(type));
  std::vector<std::byte> sums(static_cast<std::size_t>(size * ref.elements));
  memory_.copy(sums.data(), memory_.address(buffer, size * ref.offset), size * ref.elements);
  std::vector<float> out(static_cast<std::size_t>(ref.elements));
  if (type == DType::i64)
    kernels::fixed_to_float({}, out.data(), reinterpret_cast<const std::int64_t*>(sums.data()), ref.elements);
  else
    kernels::cast({}, out.data(), DType::f32, sums.data(), type, ref.elements);
  return out;
}

const void* Engine::weight_address(const std::string& tensor) const {
  const TensorRef ref = layout().find(tensor);
  const Unit& unit = layout().units[static_cast<std::size_t>(ref.unit)];
  return memory_.address(schedule().find_buffer("parameters." + unit.name),
                         ref.offset * static_cast<std::int64_t>(size_of(unit.type(schedule().shape.dtype))));
}

std::vector<float> Engine::weight_of(const std::string& tensor) const {
  const TensorRef ref = layout().find_alone(tensor);
  const DType type = layout().units[static_cast<std::size_t>(ref.unit)].type(schedule().shape.dtype);
  std::vector<float> out(static_cast<std::size_t>(ref.elements));
  std::vector<std::byte> copy(out.size() * size_of(type));
  memory_.copy(copy.data(), weight_address(tensor), static_cast<std::int64_t>(copy.size()));
  kernels::cast({}, out.data(), DType::f32, copy.data(), type, ref.elements);
  return out;
}

}  // namespace tessera
