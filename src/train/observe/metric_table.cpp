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
    {"step", "", MetricOf::any, figure<&StepFigures::step>, "Steps that are done; in a step's row with that one."},
    {"time", "s", MetricOf::any, nullptr, "When the row was written, since the begin of 1970 in UTC.", {.name = "last_row_time_seconds"}},
    {"loss", "nats a token", MetricOf::step, figure<&StepFigures::loss>, "Mean over the batch's targets, by their weights."},
    {"reference_loss", "nats a token", MetricOf::step, reference_loss,
     "With reference.model: the same of the reference, on the same batch."},
    {"grad_norm", "", MetricOf::step, figure<&StepFigures::grad_norm>, "Of the whole gradient, before clipping."},
    {"lr", "", MetricOf::step, figure<&StepFigures::learning_rate>, "The step's learning rate.", {.name = "learning_rate"}},
    {"tokens_per_second", "tokens/s", MetricOf::step, figure<&StepFigures::tokens_per_second>, "Of all ranks, without padding."},
    {"seconds",
     "s",
     MetricOf::step,
     figure<&StepFigures::seconds>,
     "Of the step, from the reading of its batch to its end.",
     {.name = "step_seconds", .type = FamilyType::histogram}},
    {"stalled_seconds",
     "s",
     MetricOf::step,
     stalled,
     "What the step took beyond the median of the steps before it, where it stood still: five times that median and 5 s more; else 0.",
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
     "The same, with what a causal mask leaves of attention.",
     {.name = "mfu_causal_ratio"}},
    {"of_product",
     "",
     MetricOf::step,
     share<&Mfu::full, false>,
     "Without run.machine: share of the rate of a product that was measured at the start, counted as mfu is. It is no MFU.",
     {.name = "of_product_ratio"}},
    {"of_product_causal",
     "",
     MetricOf::step,
     share<&Mfu::causal, false>,
     "The same, with what a causal mask leaves of attention.",
     {.name = "of_product_causal_ratio"}},
    {"seconds_of",
     "s",
     MetricOf::step,
     seconds_of,
     "With run.breakdown_every: where the step's seconds went on rank 0, by part.",
     {.many = "part", .name = "part_seconds", .type = FamilyType::histogram}},
    {"bytes_of",
     "bytes",
     MetricOf::step,
     bytes_of,
     "With run.breakdown_every: what rank 0's collectives and copies moved in the step, by part.",
     {.many = "part", .name = "part_bytes"}},
    {"memory",
     "bytes",
     MetricOf::step,
     memory,
     "Every run.breakdown_every steps, of rank 0: the process's, now and at most, a GPU's in use, and each tier's arena as planned.",
     {.many = "of", .name = "memory_bytes"}},
    {"rank_seconds",
     "s",
     MetricOf::step,
     rank_seconds,
     "Every run.breakdown_every steps, of several ranks up to 1,024: how long each computes in a step without waiting for others, a mean "
     "over "
     "the steps that it has told of since the row before.",
     {.many = "rank", .name = "rank_seconds"}},
    {"loss_scale", "", MetricOf::step, loss_scale, "In fp16: what the step's loss was multiplied by."},
    {"skipped",
     "",
     MetricOf::step,
     skipped,
     "In fp16, and with guards.skip_limit: 1 where the step moved nothing, since gradients overflowed or a guard passed it over.",
     {.name = "skipped_steps_total", .type = FamilyType::counter}},
    {"loss_z", "", MetricOf::step, z_score<&StepReport::loss_z>,
     "With guards.spike: robust standard deviations above the median of the steps before."},
    {"grad_norm_z", "", MetricOf::step, z_score<&StepReport::norm_z>, "The same of the gradient norm."},
    {"targets", "tokens", MetricOf::step, targets, "Where not all tokens count: those that do.", {.name = "targets_tokens"}},
    {"document_squares", "", MetricOf::step, document_squares, "With data.document_mask: sum of the squares of documents' lengths."},
    {"samples_of_files",
     "samples",
     MetricOf::step,
     samples_of_files,
     "Of a mixture: what each file has given since the run began.",
     {.many = "file", .name = "file_samples"}},
    {"loss_of_files",
     "nats a token",
     MetricOf::step,
     losses,
     "Of a mixture: the mean loss of each file's targets, by its path.",
     {.many = "file", .name = "file_loss"}},
    {"targets_of_files",
     "tokens",
     MetricOf::step,
     targets_of_files,
     "Of a mixture: targets of each file.",
     {.many = "file", .name = "file_targets_tokens"}},
    {"router_balance", "", MetricOf::step, of_router<&RouterFigures::balance>,
     "Balancing loss, a mean over layers: 1 where all experts have the same."},
    {"router_z", "", MetricOf::step, of_router<&RouterFigures::z>, "Mean of the squared log-sum-exp of routers' logits."},
    {"dropped",
     "choices",
     MetricOf::step,
     of_router<&RouterFigures::dropped>,
     "Choices of experts that found no room, over layers.",
     {.name = "dropped_choices"}},
    {"dropped_share", "", MetricOf::step, of_router<&RouterFigures::dropped_share>, "The same, of all choices.", {.name = "dropped_ratio"}},
    {"most_loaded",
     "",
     MetricOf::step,
     of_router<&RouterFigures::most_loaded>,
     "The fullest expert of any layer, over an even share.",
     {.name = "most_loaded_ratio"}},
    {"expert_load",
     "choices",
     MetricOf::step,
     of_router<&RouterFigures::load>,
     "Of each expert, over layers.",
     {.many = "expert", .name = "expert_load_choices"}},
    {"val_loss", "nats a token", MetricOf::evaluation, nullptr, "Mean over the validation tokens that were read."},
    {"best_val_loss", "nats a token", MetricOf::evaluation, nullptr, "The lowest of these so far."},
    {"saved", "steps", MetricOf::save, nullptr, "The step whose state now stands as a checkpoint.", {.name = "checkpoint_step"}},
    {"saved_weights", "steps", MetricOf::save, nullptr, "The step whose weights now stand.", {.name = "saved_weights_step"}},
    {"save_seconds", "s", MetricOf::save, nullptr, "From the beginning of the save until it was on the disk."},
    {"save_stall_seconds", "s", MetricOf::save, nullptr, "For how long of that steps waited."},
    {"goodput",
     "",
     MetricOf::save,
     nullptr,
     "Share of the wall time since the first launch that went into steps that stand.",
     {.name = "goodput_ratio"}},
    {"goodput_seconds",
     "s",
     MetricOf::save,
     nullptr,
     "Where that wall time went, over all starts, by part.",
     {.many = "part", .name = "goodput_seconds"}},
    {"stragglers",
     "",
     MetricOf::straggler,
     nullptr,
     "Of a rank that was found to be slow, once: its seconds of work in a step over the median of ranks with the same work.",
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
