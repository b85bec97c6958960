// tessera plan DECK: what a run would do and need, without running or allocating anything.
#include <algorithm>
#include <memory>
#include "base/json.hpp"

#include "base/limits.hpp"
#include "base/log.hpp"
#include "commands/commands.hpp"
#include "commands/plan_options.hpp"
#include "commands/plan_phases.hpp"
#include "commands/plan_stages.hpp"
#include "commands/plan_summary.hpp"
#include "deck/kinds_of_layers.hpp"
#include "io/files/posix_file.hpp"
#include "kernels/parallel.hpp"
#include "memory/arena.hpp"
#include "model/record/flops.hpp"
#include "model/table/frozen.hpp"
#include "model/table/lora.hpp"
#include "model/towers/towers.hpp"
#include "optimizer/groups.hpp"
#include "schedule/build/builder.hpp"
#include "schedule/build/describe_mesh.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/plan/peak.hpp"
#include "schedule/plan/recompute_choice.hpp"
#include "schedule/plan/remedies.hpp"
#include "schedule/plan/step_cost.hpp"
#include "schedule/run/make_executor.hpp"
#include "schedule/simulate/costly_keys.hpp"
#include "schedule/simulate/figures.hpp"
#include "schedule/simulate/host_update.hpp"
#include "schedule/simulate/prediction.hpp"
#include "schedule/trace/chrome_trace.hpp"
#include "topology/mesh_map.hpp"
#include "train/data/training_data.hpp"

namespace tessera {
namespace {

/// A plan with all that is said of it.
struct Planned {
  const PlanOptions& options;
  const ParsedDeck& parsed;
  BuildRequest request;
  MemoryLimits limits;  ///< that the deck states
  int per_node = 1, threads = 1;
  LaneMode lanes = LaneMode::threads;
  Schedule schedule = build_schedule(request);
  MemoryPlan plan = place(schedule);
  std::vector<Shortfall> lacking = shortfalls(request.deck, plan.bytes, limits);
  Remedies remedies = lacking.empty() ? Remedies{} : find_remedies(request, limits);
  std::optional<MachineProfile> machine = {};
  std::vector<StagePlan> stages = {};  ///< of a pipeline
  std::vector<PhasePlan> phases = {};  ///< before this one
  std::optional<Prediction> prediction = {};
  std::vector<Help> help = {};  ///< where the step waits for the host
  StepAdvice advice = {};
  std::string idle = {};  ///< a limit of the deck that nothing meets
  Band band = {};
  Figures figures = {};

  bool fits() const { return lacking.empty() && stages_fit(stages, limits) && phases_fit(phases, limits); }
};

Json tiers_json(const Planned& p) {
  Json tiers;
  for (std::size_t t = 0; t < tier_count; ++t) {
    if (p.plan.bytes[t] == 0) continue;
    Json categories;
    for (std::size_t c = 0; c < category_count; ++c)
      if (p.plan.by_category[t][c] > 0) categories[name_of(static_cast<Category>(c))] = p.plan.by_category[t][c];
    const Peak peak = peak_of(p.schedule, static_cast<Tier>(t));
    Json parts;
    for (const Peak::Part& part : peak.parts)
      parts[name_of(part.category)] = {
          {"bytes", part.bytes}, {"buffers", part.buffers}, {"largest", part.largest}, {"largest_bytes", part.largest_bytes}};
    tiers[std::string(name_of(static_cast<Tier>(t)))] = {
        {"bytes", p.plan.bytes[t]},
        {"persistent", p.plan.persistent[t]},
        {"transient", p.plan.transient[t]},
        {"categories", categories},
        {"peak", {{"section", peak.section}, {"task", peak.task}, {"bytes", peak.bytes}, {"categories", parts}}}};
  }
  return tiers;
}

Json limits_json(const Planned& p) {
  Json limits;
  for (const MemoryKind kind : all_memory_kinds) {
    const std::int64_t needed = bytes_of(p.plan.bytes, kind);
    if (needed == 0) continue;
    Json& row = limits[name_of(kind)] = {{"needed", needed}};
    if (kind != MemoryKind::device) row["needed_by_node"] = needed * p.per_node;
    if (const auto& limit = p.limits[static_cast<std::size_t>(kind)])
      row["limit"] = limit->bytes, row["left"] = limit->bytes - needed, row["source"] = limit->source;
  }
  return limits;
}

Json recompute_json(const Planned& p) {
  const ActivationKeys& a = p.request.deck.activation;
  Json recompute = {{"mode", word_of(a.recompute)},
                    {"every", a.every},
                    {"keep", a.keep},
                    {"flops", step_cost(p.schedule).remade_flops},
                    {"bytes_saved", recompute_gain(p.request, p.schedule, p.plan).bytes_saved}};
  if (const RecomputeChoice* chosen = p.request.choice()) recompute["chosen"] = describe(*chosen, p.request.stage);
  return recompute;
}

/// Of each rank, in their order: its node and its place along each axis.
Json map_json(const Planned& p) {
  Json map = Json::array();
  for (int rank = 0; rank < p.request.mesh.ranks(); ++rank) {
    Json row = {{"rank", rank}, {"node", rank / p.per_node}};
    const Coordinates at = coordinates_of(p.request.mesh, rank);
    for (const Axis axis : all_axes) row[std::string(name_of(axis))] = at[static_cast<std::size_t>(axis)];
    map.push_back(std::move(row));
  }
  return map;
}

/// What a rank computes of a layer with experts.
ModelShape expert_shape(const Planned& p) { return on_own_rows(cut_over_tp(p.schedule.shape, p.request.mesh.size(Axis::tp), 0)); }

void add_advice(Json& prediction, const Planned& p) {
  const double now = p.prediction->step.seconds;
  const auto row = [&](const CostlyKey& c) -> Json {
    return {{"key", c.key},
            {"change", c.change},
            {"step_seconds", c.seconds},
            {"saved_seconds", now - c.seconds},
            {"saved", 1 - c.seconds / now}};
  };
  prediction["contended_seconds"] = p.prediction->step.contended;
  if (p.band.given()) prediction["band"] = {{"fast_seconds", p.band.fast}, {"slow_seconds", p.band.slow}};
  for (const CostlyKey& c : p.advice.keys) prediction["costly_keys"].push_back(row(c));
  if (p.advice.together) prediction["costly_together"] = row(*p.advice.together);
  if (p.advice.left_out) prediction["advice_left_out"] = true;
  if (!p.idle.empty()) prediction["idle_limit"] = p.idle;
}

Json prediction_of_plan(const Planned& p) {
  Json out = {{"machine", p.machine->name}, {"profile", p.options.machine}};
  out.update(prediction_json(*p.prediction));
  out["figures"] = {{"used", p.figures.used}, {"assumed", p.figures.assumed}};
  add_advice(out, p);
  for (const Help& h : p.help) out["host_help"].push_back({{"change", h.change}, {"tokens_per_second", h.tokens_per_second}});
  if (const double price = price_of(p.options, *p.machine); price > 0)
    out["cost_per_billion_tokens"] = cost_of_billion_tokens(price, p.prediction->ranks, p.prediction->tokens_per_second);
  return out;
}

Json plan_json(const Planned& p) {
  const StepCost cost = step_cost(p.schedule);
  const FlopsPerToken flops = flops_per_token(p.request.deck);
  const auto length = static_cast<double>(p.request.deck.batch.sequence_length);
  Json out = {
      {"deck", p.options.path},
      {"auto", p.parsed.resolved},
      {"device", p.schedule.shape.backend == kernels::Backend::cuda ? "cuda" : "host"},
      {"ranks", p.request.mesh.ranks()},
      {"zero_stage", p.request.deck.zero.stage},
      {"shape", p.options.shape},
      {"parameters", parameter_count(p.request.layout.model_table())},
      {"units", p.request.layout.units.size()},
      {"tokens_per_step", p.request.deck.batch.global * p.request.deck.batch.sequence_length},
      {"micro_batches_per_rank", accumulation_steps(p.request.deck, p.request.data.size)},
      {"flops_per_token", {{"full", flops.full(length)}, {"causal", flops.causal(length)}, {"at_most", p.request.deck.data.document_mask}}},
      {"bytes_per_rank", memory_bytes(p.plan.bytes)},
      {"tiers", tiers_json(p)},
      {"limits", limits_json(p)},
      {"fits", p.fits()},
      {"step", {{"tasks", cost.tasks}, {"flops", cost.flops}, {"bytes_moved", cost.bytes_moved}}},
      {"recompute", recompute_json(p)},
      {"schedule_hash", p.schedule.hash().hex()},
      {"threads_per_rank", p.threads}};
  const ModelShape s = expert_shape(p);
  if (const Router& e = s.router; e.E > 0)
    out["experts"] = {{"experts", e.E},
                      {"per_token", e.k},
                      {"dropless", e.capacity_factor == 0},
                      {"capacity", s.expert_capacity()},
                      {"rows", s.expert_rows()}};
  for (const FileShare& file : shares_of_files(p.request.deck))
    out["data"].push_back({{"file", file.path}, {"share", file.share}, {"samples", file.samples > 0 ? Json(file.samples) : Json()}});
  if (s.ep > 1)
    out["experts"].update(Json{{"of_rank", s.own_experts()}, {"block_rows", s.expert_block()}, {"arriving_rows", s.arriving_rows()}});
  if (p.prediction) {
    out["prediction"] = prediction_of_plan(p);
    if (!p.options.tokens.empty()) out["run"] = run_json(p.options, *p.machine, p.prediction->ranks, p.prediction->tokens_per_second);
  }
  if (p.options.shape.empty()) out.erase("shape");
  if (!p.stages.empty()) {
    out["rank"] = p.request.rank;
    out["pipeline"] = stages_json(p.request, p.stages);
  }
  if (!p.phases.empty()) {
    out["ramp"] = phases_json(p.phases);
    out["bytes_per_rank_of_all_phases"] = memory_bytes(room_of(p.phases, p.plan.bytes));
  }
  if (!p.lacking.empty()) out["remedies"] = Json::array();
  for (const Remedy& remedy : p.remedies.found)
    out["remedies"].push_back({{"change", remedy.change},
                               {"cost", remedy.cost},
                               {"device_bytes", bytes_of(remedy.bytes, MemoryKind::device)},
                               {"host_bytes", bytes_of(remedy.bytes, MemoryKind::host)},
                               {"pinned_bytes", bytes_of(remedy.bytes, MemoryKind::pinned)},
                               {"nvme_bytes", bytes_of(remedy.bytes, MemoryKind::nvme)}});
  if (p.options.schedule) out["schedule"] = print_schedule(p.schedule);
  if (p.options.map) out["map"] = map_json(p);
  return out;
}

void print_limits(const Planned& p) {
  const auto human = [](std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  const char* label = "limits";
  for (const MemoryKind kind : all_memory_kinds) {
    const std::int64_t needed = bytes_of(p.plan.bytes, kind);
    if (needed == 0) continue;
    const auto& limit = p.limits[static_cast<std::size_t>(kind)];
    std::string text;
    if (!limit)
      text = fmt::format("{}; {}", human(needed),
                         kind == MemoryKind::nvme ? "the space on disks is known only on the machine itself"
                                                  : fmt::format("the deck sets no limit (memory.{})", name_of(kind)));
    else
      text = fmt::format("{} of {}, {} {}: {}", human(needed), human(limit->bytes), human(std::abs(limit->bytes - needed)),
                         needed > limit->bytes ? "too much" : "left", limit->source);
    if (kind != MemoryKind::device && p.per_node > 1)
      text += fmt::format("; {} for the {} ranks of a node", human(needed * p.per_node), p.per_node);
    put("{:9} {:6} {}\n", label, name_of(kind), text);
    label = "";
  }
}

void print_machine_part(const Planned& p) {
  const int nodes = p.prediction->nodes;
  put("machine   {} ({}): {} ranks on {}, lanes {}\n", p.machine->name, p.options.machine, p.prediction->ranks,
      nodes == 1 ? "a node" : fmt::format("{} nodes", nodes), p.lanes == LaneMode::threads ? "in parallel" : "one after the other");
  if (p.machine->threads > 0 && p.machine->threads != p.threads)
    put("note      the profile was measured with {} threads a rank, and these ranks have {}\n", p.machine->threads, p.threads);
  put("predicted{}\n", print_prediction(*p.prediction));
  if (const std::string assumed = describe_assumed(p.figures); !assumed.empty()) put("assumed   {}\n", assumed);
}

/// Parameters of the towers that run beside the model.
std::int64_t bytes_of_towers(const Schedule& schedule) {
  std::int64_t bytes = 0;
  for (const Tower& tower : schedule.towers)
    for (const Buffer& buffer : schedule.buffers)
      if (tower.trains_nothing() && buffer.name.starts_with("parameters." + tower.prefix)) bytes += buffer.bytes;
  return bytes;
}

/// What is seldom looked for, after one screen.
void print_details(const Planned& p) {
  const Deck& deck = p.request.deck;
  const StepCost cost = step_cost(p.schedule);
  for (const std::string& line : p.parsed.resolved) put("auto      {}\n", line);
  if (deck.run.device == RunDevice::automatic) put("auto      run.device: planned for the host; run.device=cuda plans for a GPU\n");
  put("model     {} parameters in {} units; {}\n", human_count(static_cast<double>(parameter_count(p.request.layout.model_table()))),
      p.request.layout.units.size(), describe_flops(deck));
  if (const std::string lora = describe_lora(p.request.deck.model, p.request.layout.model_table()); !lora.empty())
    put("lora      {}\n", lora);
  if (const std::string fp8 = describe_fp8(p.request.layout.model_table(), deck.precision); !fp8.empty()) put("fp8       {}\n", fp8);
  for (const std::string& line : describe_groups(p.request.deck.optimizer, p.request.layout.model_table())) put("optimizer {}\n", line);
  if (const std::string frozen = describe_frozen(p.request.layout.model_table()); !frozen.empty())
    put("frozen    {}: without gradients, moments and fp32 copies\n", frozen);
  if (const std::string towers = describe_towers(p.request.deck); !towers.empty())
    put("towers    {}, {} on this rank\n", towers, human_bytes(static_cast<double>(bytes_of_towers(p.schedule))));
  if (const std::string layers = describe_layers(p.request.deck.model); !layers.empty()) put("layers    {}\n", layers);
  if (p.schedule.shape.router.E > 0) put("experts   {}\n", describe_experts(expert_shape(p)));
  const int context = p.request.mesh.size(Axis::cp), tensor = p.request.mesh.size(Axis::tp), experts = p.request.mesh.size(Axis::ep);
  put("mesh      {}{} data-parallel ranks{}{}{}{}, ZeRO stage {}\n", p.stages.empty() ? "" : fmt::format("{} stages of ", p.stages.size()),
      p.request.data.size, describe_replicas(p.request.mesh),
      experts == 1 ? "" : fmt::format(" in groups of {} that share the experts", experts),
      context == 1 ? "" : fmt::format(" of {} context-parallel ones each{}", context, describe_context(deck, p.request.mesh)),
      tensor == 1 ? "" : fmt::format(" of {} tensor-parallel ones each{}", tensor, describe_tensor(deck, p.request.mesh)), deck.zero.stage);
  print_phases(p.phases, p.plan.bytes);
  put("batch     {}\n", describe_batch(deck, p.request.data.size));
  if (deck.data.train.size() > 1)
    for (const FileShare& file : shares_of_files(deck))
      put("data      {}: {}{}\n", file.path, describe(file),
          file.samples == 0
              ? ""
              : fmt::format(", {} tokens of the run", human_count(static_cast<double>(file.samples * deck.batch.sequence_length))));
  if (!p.stages.empty()) print_stages(p.request, p.stages);
  put("step      {} tasks, {} FLOPs and {} moved by collectives and copies, on each rank\n", cost.tasks, human_count(cost.flops),
      human_bytes(cost.bytes_moved));
  put("recompute {}\n", describe_recompute(p.request, recompute_gain(p.request, p.schedule, p.plan)));
  put("memory    {} on each rank\n{}", human_bytes(static_cast<double>(memory_bytes(p.plan.bytes))), print_memory(p.schedule, p.plan));
  print_limits(p);
  put("peak      when a tier holds most, and what it holds then\n");
  for (std::size_t t = 0; t < tier_count; ++t)
    if (p.plan.transient[t] > 0) put("{}", print_peak(peak_of(p.schedule, static_cast<Tier>(t)), static_cast<Tier>(t)));
  if (p.prediction) print_machine_part(p);
}

/// What makes the step shorter, by the simulator.
void print_advice(const Planned& p) {
  const char* label = "advice";
  for (std::size_t i = 0; i < std::min(most_advice, p.advice.keys.size()); ++i, label = "")
    put("{:9} {}\n", label, text_of(p.advice.keys[i], *p.prediction));
  if (p.advice.together) put("{:9} together: {}\n", label, text_of(*p.advice.together, *p.prediction));
  if (p.advice.left_out) put("{:9} a step has {} tasks or more: --recommend searches for faster ones\n", label, most_played_tasks);
  put("{}", print_help(p.help, *p.prediction));
  if (!p.idle.empty()) put("note      {}\n", p.idle);
}

void print_plan(const Planned& p) {
  put("{}", print_summary({.options = p.options,
                           .deck = p.request.deck,
                           .bytes = p.plan.bytes,
                           .limits = p.limits,
                           .fits = p.fits(),
                           .machine = p.machine,
                           .prediction = p.prediction,
                           .band = p.band}));
  if (!p.options.shape.empty()) put("shape     {}\n", p.options.shape);
  if (p.prediction) {
    if (const std::string others = published_line(p.request.deck, *p.machine); !others.empty()) put("published {}\n", others);
    print_advice(p);
    if (!p.options.verbose && !p.figures.assumed.empty())
      put("assumed   {} of the {} figures behind this prediction\n", p.figures.assumed.size(), p.figures.used.size());
  }
  if (p.options.verbose) {
    print_details(p);
  } else {
    put("more      --verbose: memory by tier, lanes, and what the step waits for and assumes; --json has all of it\n");
  }
  if (p.options.map) put("map       ranks on nodes of {}\n{}", p.per_node, print_map(p.request.mesh, p.per_node));
  if (p.options.schedule) put("\n{}", print_schedule(p.schedule));
}

/// What auto may take: what the deck says, or on the host of this machine's share.
MemoryLimits limits_of_auto(const Deck& deck, const MemoryLimits& stated, int per_node) {
  const bool gpu = deck.run.device == RunDevice::cuda;
  if (stated[static_cast<std::size_t>(kernel_memory(deck))]) return stated;
  if (gpu)
    fail(ExitCode::usage,
         "activation.recompute = \"auto\" needs a GPU's memory, and a plan does not look for a GPU: set it, for example memory.device=\"80 "
         "GB\"");
  MemoryLimits limits = stated;
  lower(limits[static_cast<std::size_t>(kernel_memory(deck))],
        {static_cast<std::int64_t>(node_memory().available) / per_node, "this machine's free memory divided by the ranks of a node"});
  return with_room_left(limits, stated);
}

void write_trace(const Planned& p) {
  io::AtomicFile out(p.options.trace);
  const std::string text =
      chrome_trace(p.prediction->step.timeline, {},
                   {.step = 1, .rank = p.request.rank, .ranks = p.prediction->ranks, .device = p.machine->name, .predicted = true});
  out.file().write(0, text.data(), text.size());
  out.commit();
  if (p.options.json) return;
  const std::int64_t left_out = p.prediction->step.left_out;
  put("trace     {}, for ui.perfetto.dev{}\n", p.options.trace,
      left_out > 0 ? fmt::format("; {} micro-batches like the earlier ones are left out", left_out) : "");
  if (!p.stages.empty()) put("          without waits for other stages\n");
}

/// With the most and the least that programs reach of the profile's rates.
void add_band(Planned& p, const std::function<double(const MachineProfile&)>& seconds) {
  const auto& efficiency = p.machine->efficiency;
  if (!efficiency.given() || efficiency.low == efficiency.high) return;
  const auto with = [&](double share) {
    MachineProfile machine = *p.machine;
    machine.efficiency.likely = share;
    return seconds(machine);
  };
  p.band = {.fast = with(efficiency.high), .slow = with(efficiency.low)};
}

void add_prediction(Planned& p, const Mesh& mesh) {
  const Placement placement{.mesh = mesh, .ranks_per_node = p.per_node, .lanes_side_by_side = p.lanes == LaneMode::threads};
  const bool timeline = !p.options.trace.empty();
  p.figures = figures_of(p.schedule, *p.machine, placement);
  if (p.stages.empty()) {
    for (PhasePlan& phase : p.phases)
      phase.seconds = predict(phase.plan.request, phase.plan.schedule, phase.plan.memory, *p.machine, placement).step.seconds;
    p.prediction = predict(p.request, p.schedule, p.plan, *p.machine, placement, timeline);
    if (p.fits())
      p.advice =
          advise(p.request, *p.prediction, *p.machine, placement, [&](const Deck& deck) { return limits_with(deck, placement.ranks()); });
    p.idle = idle_limit(p.request);
    add_band(p, [&](const MachineProfile& m) { return predict(p.request, p.schedule, p.plan, m, placement).step.seconds; });
    p.help = help_with_host_update(p.request.deck, *p.prediction, *p.machine, placement,
                                   [](const Deck& deck, int ranks) { return limits_with(deck, ranks); });
    return;
  }
  std::vector<RunPlan> stages;
  for (const StagePlan& stage : p.stages) stages.push_back(stage.plan);
  const auto shown = static_cast<std::size_t>(p.request.stage.number);
  p.prediction = predict_stage(shown, stages, *p.machine, placement, timeline);
  if (stages_fit(p.stages, p.limits))
    p.advice =
        advise(p.request, *p.prediction, *p.machine, placement, [&](const Deck& deck) { return limits_with(deck, placement.ranks()); });
  add_band(p, [&](const MachineProfile& m) { return predict_stage(shown, stages, m, placement).step.seconds; });
}

int run(const PlanOptions& asked) {
  const PlanOptions o = with_parameters(with_model(asked));
  if (o.meshes && !o.recommend && o.sweep.empty())
    fail(ExitCode::usage, "--meshes extends the search of --recommend or --sweep: give one of them");
  if (!o.tokens.empty()) read_tokens(o.tokens);
  if (!o.shape.empty() && !o.json && (o.recommend || !o.sweep.empty())) put("shape     {}\n", o.shape);
  if (o.recommend || !o.sweep.empty()) return o.meshes ? recommend_meshes(o) : recommend(o);
  const std::optional<MachineProfile> machine = machine_of(o);
  ParsedDeck parsed = parse_for(o, machine);
  const Deck deck = require_deck(parsed);
  const int per_node = ranks_per_node(o, machine), threads = threads_of(o, deck, machine, per_node);
  kernels::plan_for_threads(threads);
  const Mesh mesh = make_mesh(deck, o.ranks);
  if (o.rank >= o.ranks) fail(ExitCode::usage, "--rank {} of {} ranks: they are 0 to {}", o.rank, o.ranks, o.ranks - 1);
  BuildRequest request = request_for(deck, mesh, o.rank, Purpose::training);
  const MemoryLimits stated = stated_limits(deck, o.ranks);
  std::function<void(BuildRequest&)> settle = [](BuildRequest&) {};
  if (deck.activation.recompute == Recompute::automatic) {
    const MemoryLimits limits = limits_of_auto(deck, stated, per_node);
    settle = [limits](BuildRequest& of_phase) { settle_recompute(of_phase, limits); };
    settle(request);
    for (const auto& limit : limits)
      if (limit)
        parsed.resolved.push_back(
            fmt::format("activation.recompute: chosen for {}, {}", human_bytes(static_cast<double>(limit->bytes)), limit->source));
  }
  Planned planned{.options = o,
                  .parsed = parsed,
                  .request = std::move(request),
                  .limits = stated,
                  .per_node = std::min(per_node, o.ranks),
                  .threads = threads,
                  .lanes = deck.run.device == RunDevice::cuda ? LaneMode::threads : lane_mode(deck, o.ranks, threads),
                  .machine = machine};
  if (mesh.size(Axis::pp) > 1) planned.stages = plan_stages(planned.request);
  planned.phases = plan_phases(deck, planned.request, stated, settle);
  if (machine) add_prediction(planned, mesh);
  if (o.json)
    put("{}\n", plan_json(planned).dump(2, BadText::replace));
  else
    print_plan(planned);
  // The usual deck of a model names data that nobody has asked for.
  if (o.text.empty())
    for (const std::string& line : data_warnings_if_readable(deck)) log_line(LogLevel::warning, line);
  if (!o.trace.empty()) write_trace(planned);
  if (planned.lacking.empty()) require_stages_fit(planned.stages, planned.limits), require_phases_fit(planned.phases, planned.limits);
  if (planned.lacking.empty()) return 0;
  fail(ExitCode::memory, "{}{}", print_shortfalls(planned.lacking), print_remedies(planned.remedies, deck));
}

}  // namespace

void add_plan(const Command& app) {
  const Command command = app.command(
      "plan",
      "Memory, FLOPs, traffic and tasks of a run before it starts, for any machine; needs no GPU, no MPI and no memory of its size");
  auto options = std::make_shared<PlanOptions>();
  const Option deck =
      command.option("DECK", options->path, "TOML file, or the name of a model (llama3-70b); may be left out with --parameters");
  command.option("key=value", options->overrides, "Overrides, for example zero.stage=3; applied in order");
  const Option parameters =
      command.option("--parameters", options->parameters,
                     "Plan a dense model of a usual shape with about this many parameters (7e9 or 7B), instead of the deck's model");
  const Option ranks =
      command.option("--ranks,--gpus", options->ranks, "Ranks of the launch, one for each GPU").between(1, 1000000).shows_default();
  command
      .option("--ranks-per-node", options->ranks_per_node,
              "Ranks that share a node's cores and host memory; 0: as in the machine profile, else all")
      .between(0, 1000000)
      .shows_default();
  command
      .option("--threads", options->threads,
              "Threads of a rank (workspace depends on it); 0: as in the machine profile, else this machine's cores divided by the ranks "
              "of a node")
      .between(0, most_threads)
      .shows_default();
  command
      .option("--rank", options->rank,
              "Rank to plan for; ranks of different pipeline stages differ. Memory of all stages is shown in any case")
      .between(0, 999999)
      .shows_default();
  const Option machine =
      command.option("--machine", options->machine,
                     "Machine profile (a file, as of `tessera report --measure`, or the name of one of inputs/machines, for example "
                     "h100_8): predicts time, tokens/s and MFU. It also gives memory and ranks of a node, if nothing else does");
  command
      .option("--network", options->network,
              "Bytes a second into a node (\"1.25 GB/s\", \"10 Gbit/s\"), instead of the profile's collectives.network.bandwidth")
      .needs(machine);
  command.option("--power", options->power, "Watts that each GPU may take (\"500 W\"), instead of the profile's power.limit")
      .needs(machine);
  command
      .option("--efficiency", options->efficiency,
              "Share of the profile's kernel rates that a step reaches, instead of the profile's efficiency")
      .between(0.01, 1.5)
      .needs(machine);
  command.option("--tokens", options->tokens, "Tokens of a whole run (15T): adds its days, GPU-hours and cost").needs(machine);
  const Option trace =
      command.option("--trace", options->trace, "Write the predicted step as a trace that ui.perfetto.dev opens").needs(machine);
  const Option schedule = command.flag("--schedule", options->schedule, "Print every task with its lane and buffers");
  const Option map =
      command.flag("--map", options->map, "Print the ranks of each node, and over how many nodes the groups of each axis are spread");
  command.flag("--json", options->json, "Print one JSON object");
  command.flag("--verbose", options->verbose, "Print everything about the plan, not only the summary");
  const Option recommend =
      command
          .flag("--recommend", options->recommend,
                "Search stage, offload, recompute, batch.micro, prefetch and reuse for the highest predicted tokens/s that fits")
          .needs(machine)
          .excludes(trace)
          .excludes(map)
          .excludes(schedule);
  command.option("--write", options->write, "Write the deck that --recommend has found").needs(recommend);
  command.option("--sweep", options->sweep, "Print the recommendation for each of these numbers of ranks: 8,16,32")
      .parted_by(',')
      .one_word()
      .between(1, 1000000)
      .needs(machine)
      .excludes(trace)
      .excludes(map)
      .excludes(schedule)
      .excludes(recommend)
      .excludes(ranks);
  command.flag("--meshes", options->meshes,
               "With --recommend or --sweep: also search the axes of the mesh, together with stage, recompute and batch.micro");
  command
      .option("--price", options->price,
              "Price of a rank for an hour, in any currency, instead of the profile's machine.price: adds the cost of tokens")
      .between(1e-9, 1e9)
      .needs(machine);
  command.footer(
      "Examples:\n  tessera plan inputs/quickstart.toml --ranks 4\n  tessera plan inputs/train_70b.toml --ranks 64 --ranks-per-node 8 "
      "run.device=cuda memory.device=\"80 GB\"\n  tessera plan inputs/train_70b.toml --ranks 64 --machine h100_8\n"
      "  tessera plan inputs/train_70b_tp8.toml --ranks 64 --ranks-per-node 8 --map\n"
      "  tessera plan inputs/train_70b.toml --recommend --gpus 64 --machine h100_8 --write best.toml\n"
      "  tessera plan inputs/train_70b.toml --recommend --meshes --gpus 512 --machine h100_8\n"
      "  tessera plan --parameters 7e9 --gpus 8 --machine h100_8 --recommend\n"
      "  tessera plan llama3-70b --gpus 64 --machine h100_8 --tokens 15T --price 2.5\n"
      "  tessera plan inputs/train_70b.toml --sweep 32,64,128 --price 2.5 --machine h100_8");
  command.does([options] { return run(*options); },
               [deck, parameters] { return deck.given() || parameters.given() ? std::string() : "DECK, or --parameters,"; });
}

}  // namespace tessera
