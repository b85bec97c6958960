#include "train/observe/metric_table.hpp"

#include <fmt/format.h>

#include "model/towers/towers.hpp"
#include "train/observe/memory_use.hpp"
#include "train/observe/step_breakdown.hpp"

namespace tessera {
namespace {

using Figure = std::optional<io::MetricValue>;

template <auto member>
Figure figure(const StepEnd& end, const RunParts&) {
  return end.figures.*member;
}
template <auto member>
Figure of_router(const StepEnd& end, const RunParts&) {
  if (!end.router) return {};
  return (*end.router).*member;
}
bool is_mixture(const RunParts& run) { return run.data.files().size() > 1; }

Figure loss_scale(const StepEnd& end, const RunParts& run) {
  if (!run.deck.precision.scales_loss()) return {};
  return static_cast<double>(end.report.loss_scale);
}
Figure skipped(const StepEnd& end, const RunParts& run) {
  if (!run.deck.precision.scales_loss() && run.deck.guards.skip_limit == 0) return {};
  return static_cast<std::int64_t>(end.report.skipped || end.report.passed_over);
}
template <auto member>
Figure z_score(const StepEnd& end, const RunParts& run) {
  if (run.deck.guards.steps_judged_by() == 0) return {};
  return static_cast<double>(end.report.*member);
}
Figure targets(const StepEnd& end, const RunParts& run) {
  if (!run.data.masked()) return {};
  return end.report.targets;
}
Figure document_squares(const StepEnd& end, const RunParts& run) {
  if (!run.deck.data.document_mask) return {};
  return end.report.document_squares;
}
/// Of a peak or of a measured product, whichever this run has.
template <auto member, bool of_peak>
Figure share(const StepEnd& end, const RunParts&) {
  if (end.figures.mfu.of_peak != of_peak) return {};
  return end.figures.mfu.*member;
}
Figure stalled(const StepEnd& end, const RunParts&) { return end.stall ? end.stall->excess() : 0.0; }
Figure seconds_of(const StepEnd& end, const RunParts&) {
  if (!end.breakdown) return {};
  return seconds_of_parts(end);
}
Figure bytes_of(const StepEnd& end, const RunParts&) {
  if (!end.breakdown) return {};
  return bytes_of_parts(end);
}
Figure memory(const StepEnd& end, const RunParts& run) {
  if (!end.breakdown || end.done % run.deck.run.breakdown_every != 0) return {};
  return memory_in_use(run);
}
Figure rank_seconds(const StepEnd& end, const RunParts&) {
  if (end.rank_seconds.empty()) return {};
  return end.rank_seconds;
}
Figure samples_of_files(const StepEnd&, const RunParts& run) {
  if (!is_mixture(run)) return {};
  return run.data.served(run.engine.run_values().sample_cursor);
}
Figure reference_loss(const StepEnd&, const RunParts& run) {
  if (const std::optional<double> loss = run.engine.loss_of(reference_tower.name)) return *loss;
  return {};
}
template <class F>
Figure of_pairs(const RunParts& run, F figure) {
  const std::optional<kernels::PreferenceTotals> totals = run.engine.preference_totals();
  if (!totals || totals->chosen == 0) return {};
  return figure(*totals) / static_cast<double>(totals->chosen);
}
template <kernels::FixedSum kernels::PreferenceTotals::*sum>
Figure mean_of_pairs(const StepEnd&, const RunParts& run) {
  return of_pairs(run, [](const kernels::PreferenceTotals& totals) { return (totals.*sum).value(); });
}
Figure accurate_pairs(const StepEnd&, const RunParts& run) {
  return of_pairs(run, [](const kernels::PreferenceTotals& totals) { return static_cast<double>(totals.accurate); });
}
Figure reward_margins(const StepEnd&, const RunParts& run) {
  return of_pairs(run, [](const kernels::PreferenceTotals& totals) { return totals.margins(); });
}
Figure nll_of_chosen(const StepEnd&, const RunParts& run) {
  const std::optional<kernels::PreferenceTotals> totals = run.engine.preference_totals();
  if (!totals || totals->nll_tokens == 0) return {};
  return totals->nll.value() / static_cast<double>(totals->nll_tokens);
}
Figure losses(const StepEnd&, const RunParts& run) {
  if (!is_mixture(run)) return {};
  return loss_of_files(run);
}
Figure targets_of_files(const StepEnd&, const RunParts& run) {
  if (!is_mixture(run)) return {};
  std::vector<std::int64_t> targets;
  for (const GroupLoss& loss : run.engine.group_losses()) targets.push_back(loss.targets);
  return targets;
}

using io::FamilyType;

constexpr Metric table[] = {
    {"step", "", MetricOf::any, figure<&StepFigures::step>, "Number of steps done, including the row's own step."},
    {"time", "s", MetricOf::any, nullptr, "Time when the row was written, since 1970 in UTC.", {.name = "last_row_time_seconds"}},
    {"loss", "nats a token", MetricOf::step, figure<&StepFigures::loss>, "Mean loss over the batch's targets, by their weights."},
    {"reference_loss", "nats a token", MetricOf::step, reference_loss,
     "With reference.model: mean loss of the reference on the same batch."},
    {"rewards/chosen",
     "",
     MetricOf::step,
     mean_of_pairs<&kernels::PreferenceTotals::chosen_rewards>,
     "With [preference]: mean reward of chosen texts, which is beta times their log-probability over the reference's.",
     {.name = "rewards_chosen"}},
    {"rewards/rejected",
     "",
     MetricOf::step,
     mean_of_pairs<&kernels::PreferenceTotals::rejected_rewards>,
     "The same of rejected texts.",
     {.name = "rewards_rejected"}},
    {"rewards/accuracies",
     "",
     MetricOf::step,
     accurate_pairs,
     "Share of pairs whose chosen text has the larger reward.",
     {.name = "rewards_accuracy_ratio"}},
    {"rewards/margins",
     "",
     MetricOf::step,
     reward_margins,
     "Mean reward of chosen texts less that of rejected ones.",
     {.name = "rewards_margin"}},
    {"logps/chosen",
     "nats",
     MetricOf::step,
     mean_of_pairs<&kernels::PreferenceTotals::chosen_logps>,
     "Mean log-probability of chosen texts; of simpo, of their tokens.",
     {.name = "logps_chosen"}},
    {"logps/rejected",
     "nats",
     MetricOf::step,
     mean_of_pairs<&kernels::PreferenceTotals::rejected_logps>,
     "The same of rejected texts.",
     {.name = "logps_rejected"}},
    {"nll_loss", "nats a token", MetricOf::step, nll_of_chosen, "With cpo or sft in preference.objective: mean loss of chosen tokens."},
    {"grad_norm", "", MetricOf::step, figure<&StepFigures::grad_norm>, "Norm of the whole gradient, before clipping."},
    {"lr", "", MetricOf::step, figure<&StepFigures::learning_rate>, "The step's learning rate.", {.name = "learning_rate"}},
    {"tokens_per_second", "tokens/s", MetricOf::step, figure<&StepFigures::tokens_per_second>, "Tokens of all ranks, without padding."},
    {"seconds",
     "s",
     MetricOf::step,
     figure<&StepFigures::seconds>,
     "Time of the step, from reading its batch to its end.",
     {.name = "step_seconds", .type = FamilyType::histogram}},
    {"stalled_seconds",
     "s",
     MetricOf::step,
     stalled,
     "If the step stalled (longer than five times the median of earlier steps, plus 5 s): its time beyond that median; else 0.",
     {.name = "stalled_seconds_total", .type = FamilyType::counter}},
    {"mfu",
     "",
     MetricOf::step,
     share<&Mfu::full, true>,
     "With run.machine: share of the profile's peak, with all of attention counted.",
     {.name = "mfu_ratio"}},
    {"mfu_causal",
     "",
     MetricOf::step,
     share<&Mfu::causal, true>,
     "The same, but attention counts only what a causal mask leaves.",
     {.name = "mfu_causal_ratio"}},
    {"of_product",
     "",
     MetricOf::step,
     share<&Mfu::full, false>,
     "Without run.machine: share of the rate of a product measured at the start, counted as mfu. This is not MFU.",
     {.name = "of_product_ratio"}},
    {"of_product_causal",
     "",
     MetricOf::step,
     share<&Mfu::causal, false>,
     "The same, but attention counts only what a causal mask leaves.",
     {.name = "of_product_causal_ratio"}},
    {"seconds_of",
     "s",
     MetricOf::step,
     seconds_of,
     "With run.breakdown_every: seconds of rank 0 in each part of the step.",
     {.many = "part", .name = "part_seconds", .type = FamilyType::histogram}},
    {"bytes_of",
     "bytes",
     MetricOf::step,
     bytes_of,
     "With run.breakdown_every: bytes that rank 0's collectives and copies moved in the step, by part.",
     {.many = "part", .name = "part_bytes"}},
    {"memory",
     "bytes",
     MetricOf::step,
     memory,
     "Every run.breakdown_every steps, of rank 0: memory of the process (now and at most), memory in use on a GPU, and each tier's arena "
     "as planned.",
     {.many = "of", .name = "memory_bytes"}},
    {"rank_seconds",
     "s",
     MetricOf::step,
     rank_seconds,
     "Every run.breakdown_every steps, of up to 1,024 ranks: compute time of each rank in a step without waiting for others. It is a mean "
     "over the steps since the row before.",
     {.many = "rank", .name = "rank_seconds"}},
    {"loss_scale", "", MetricOf::step, loss_scale, "In fp16: the loss scale of the step."},
    {"skipped",
     "",
     MetricOf::step,
     skipped,
     "In fp16, and with guards.skip_limit: 1 if the step changed no weights, because gradients overflowed or a guard skipped it.",
     {.name = "skipped_steps_total", .type = FamilyType::counter}},
    {"loss_z", "", MetricOf::step, z_score<&StepReport::loss_z>,
     "With guards.spike: robust standard deviations above the median of the steps before."},
    {"grad_norm_z", "", MetricOf::step, z_score<&StepReport::norm_z>, "The same for the gradient norm."},
    {"targets", "tokens", MetricOf::step, targets, "If not all tokens count: the number of those that do.", {.name = "targets_tokens"}},
    {"document_squares", "", MetricOf::step, document_squares, "With data.document_mask: sum of the squares of documents' lengths."},
    {"samples_of_files",
     "samples",
     MetricOf::step,
     samples_of_files,
     "For a mixture: what each file has given since the run started.",
     {.many = "file", .name = "file_samples"}},
    {"loss_of_files",
     "nats a token",
     MetricOf::step,
     losses,
     "For a mixture: the mean loss of each file's targets, by its path.",
     {.many = "file", .name = "file_loss"}},
    {"targets_of_files",
     "tokens",
     MetricOf::step,
     targets_of_files,
     "For a mixture: targets of each file.",
     {.many = "file", .name = "file_targets_tokens"}},
    {"router_balance", "", MetricOf::step, of_router<&RouterFigures::balance>,
     "Balancing loss, a mean over layers: 1 if all experts have equal shares."},
    {"router_z", "", MetricOf::step, of_router<&RouterFigures::z>, "Mean of the squared log-sum-exp of routers' logits."},
    {"dropped",
     "choices",
     MetricOf::step,
     of_router<&RouterFigures::dropped>,
     "Choices of experts that were dropped because the expert was full, over all layers.",
     {.name = "dropped_choices"}},
    {"dropped_share",
     "",
     MetricOf::step,
     of_router<&RouterFigures::dropped_share>,
     "The same, as a share of all choices.",
     {.name = "dropped_ratio"}},
    {"most_loaded",
     "",
     MetricOf::step,
     of_router<&RouterFigures::most_loaded>,
     "Load of the fullest expert of any layer, relative to an equal share.",
     {.name = "most_loaded_ratio"}},
    {"expert_load",
     "choices",
     MetricOf::step,
     of_router<&RouterFigures::load>,
     "The same for each expert, over all layers.",
     {.many = "expert", .name = "expert_load_choices"}},
    {"val_loss", "nats a token", MetricOf::evaluation, nullptr, "Mean loss over the validation tokens that were read."},
    {"best_val_loss", "nats a token", MetricOf::evaluation, nullptr, "The lowest of these so far."},
    {"saved", "steps", MetricOf::save, nullptr, "Step that was just saved as a checkpoint.", {.name = "checkpoint_step"}},
    {"saved_weights", "steps", MetricOf::save, nullptr, "Step whose weights were just saved.", {.name = "saved_weights_step"}},
    {"save_seconds", "s", MetricOf::save, nullptr, "Time from the start of the save until it was on the disk."},
    {"save_stall_seconds", "s", MetricOf::save, nullptr, "Part of that time during which steps waited."},
    {"goodput",
     "",
     MetricOf::save,
     nullptr,
     "Share of the wall time since the first launch that went into steps whose result was kept.",
     {.name = "goodput_ratio"}},
    {"goodput_seconds",
     "s",
     MetricOf::save,
     nullptr,
     "Parts of that wall time, over all starts.",
     {.many = "part", .name = "goodput_seconds"}},
    {"stragglers",
     "",
     MetricOf::straggler,
     nullptr,
     "Once for each rank that was found to be slow: its seconds of work in a step over the median of ranks with the same work.",
     {.many = "rank", .name = "straggler_ratio"}},
};

constexpr std::string_view name_of(MetricOf of) {
  constexpr std::string_view names[] = {"any", "step", "evaluation", "save", "straggler"};
  return names[static_cast<std::size_t>(of)];
}

}  // namespace

std::span<const Metric> metrics() { return table; }

std::string exposed_name(const Metric& metric) {
  return fmt::format("tessera_{}", metric.shown.name.empty() ? metric.name : metric.shown.name);
}

io::NamedNumbers loss_of_files(const RunParts& run) {
  io::NamedNumbers losses;
  for (const GroupLoss& loss : run.engine.group_losses())
    losses.emplace_back(run.data.files()[losses.size()].path(), loss.sum / loss.weight);
  return losses;
}

io::MetricRow row_of_step(const StepEnd& end, const RunParts& run) {
  io::MetricRow row;
  for (const Metric& metric : table)
    if (const Figure value = metric.value ? metric.value(end, run) : Figure{}) row.emplace_back(metric.name, *value);
  return row;
}

std::vector<std::string> metric_columns() {
  std::vector<std::string> columns = {"step"};
  for (const Metric& metric : table)
    if (metric.shown.many.empty() && metric.name != columns.front()) columns.emplace_back(metric.name);
  return columns;
}

std::string metrics_page_table() {
  std::string text = "| key | unit | row of | what | Prometheus |\n|---|---|---|---|---|\n";
  for (const Metric& m : table)
    text += fmt::format("| `{}` | {} | {} | {} | `{}{}`{} |\n", m.name, m.unit, name_of(m.of), m.help, exposed_name(m),
                        m.shown.many.empty() ? "" : fmt::format("{{{}}}", m.shown.many),
                        m.shown.type == FamilyType::histogram ? ", a histogram" : "");
  return text;
}

}  // namespace tessera
