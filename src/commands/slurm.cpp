// tessera slurm DECK: the job script that the deck's run needs, by its plan and its predicted time.
#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/limits.hpp"
#include "base/log.hpp"
#include "base/progress_line.hpp"
#include "commands/commands.hpp"
#include "commands/plan_options.hpp"
#include "commands/plan_phases.hpp"
#include "io/files/path_state.hpp"
#include "kernels/parallel.hpp"
#include "report/job_header.hpp"
#include "schedule/plan/recompute_choice.hpp"
#include "schedule/run/make_executor.hpp"
#include "schedule/simulate/prediction.hpp"

namespace tessera {
namespace {

struct SlurmOptions {
  PlanOptions plan;
  double hours = 24;
};

constexpr int usual_gpus = 8, usual_cores = 8, most_nodes = 4096;

/// A deck on so many ranks.
struct Sized {
  Deck deck;
  Placement placement;
  MemoryLimits limits;
  RunPlan plan;
  std::vector<StagePlan> stages;
  std::vector<PhasePlan> phases;
  std::vector<Shortfall> lacking;

  bool fits() const { return lacking.empty() && stages_fit(stages, limits) && phases_fit(phases, limits); }
  /// Of the largest stage and phase, of each tier.
  TierBytes room() const {
    TierBytes room = room_of(phases, plan.memory.bytes);
    const auto take = [&](const std::vector<StagePlan>& of) {
      for (const StagePlan& stage : of) raise(room, stage.plan.memory.bytes);
    };
    take(stages);
    for (const PhasePlan& phase : phases) take(phase.stages);
    return room;
  }
};

Sized size(const PlanOptions& o, const Deck& deck, int per_node, int threads) {
  const Mesh mesh = make_mesh(deck, o.ranks);
  BuildRequest request = request_for(deck, mesh, 0, Purpose::training);
  const MemoryLimits limits = stated_limits(deck, o.ranks);
  if (deck.activation.recompute == Recompute::automatic && !limits[static_cast<std::size_t>(kernel_memory(deck))])
    fail(ExitCode::usage,
         "activation.recompute = \"auto\" depends on memory, which is not known here: give --machine PROFILE, or memory.{}=\"80 GB\"",
         name_of(kernel_memory(deck)));
  const auto settle = [&](BuildRequest& of) { settle_recompute(of, limits); };
  settle(request);
  Sized sized{
      .deck = deck,
      .placement = {.mesh = mesh,
                    .ranks_per_node = per_node,
                    .lanes_side_by_side = deck.run.device == RunDevice::cuda || lane_mode(deck, o.ranks, threads) == LaneMode::threads},
      .limits = limits,
      .plan = plan_run(request),
      .stages = {},
      .phases = {},
      .lacking = {}};
  sized.lacking = shortfalls(deck, sized.plan.memory.bytes, limits);
  if (mesh.size(Axis::pp) > 1) sized.stages = plan_stages(request);
  sized.phases = plan_phases(deck, request, limits, settle);
  return sized;
}

/// Of all steps of the run.
double seconds_of_run(const Sized& s, const MachineProfile& machine) {
  ProgressLine line("predict", static_cast<double>(s.phases.size() + 1));
  const auto step = [&](const RunPlan& plan, const std::vector<StagePlan>& of) {
    if (of.empty()) return predict(plan.request, plan.schedule, plan.memory, machine, s.placement).step.seconds;
    std::vector<RunPlan> stages;
    for (const StagePlan& stage : of) stages.push_back(stage.plan);
    return predict_stage(0, stages, machine, s.placement, false, [&](double share) { line.show(share); }).step.seconds;
  };
  double seconds = 0;
  std::int64_t done = 0;
  for (const PhasePlan& phase : s.phases) {
    const std::int64_t until = std::min(phase.until_step, s.deck.run.steps);
    seconds += static_cast<double>(until - done) * step(phase.plan, phase.stages);
    done = until, line.part_ends();
  }
  return seconds + static_cast<double>(s.deck.run.steps - done) * step(s.plan, s.stages);
}

/// Where common.sh lies beside this program, else beside the submitter.
std::string folder_of_scripts() {
  std::error_code unknown;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unknown);
  const std::filesystem::path installed = program.parent_path().parent_path() / "share/tessera/slurm";
  return io::look_at((installed / "common.sh").string()).exists() ? installed.string() : "slurm";
}

int cores_of(const PlanOptions& o, const Deck& deck, const std::optional<MachineProfile>& machine) {
  if (o.threads > 0) return o.threads;
  if (deck.run.threads > 0) return static_cast<int>(deck.run.threads);
  return machine && machine->threads > 0 ? static_cast<int>(machine->threads) : usual_cores;
}

int ranks_of_node(const PlanOptions& o, const std::optional<MachineProfile>& machine) {
  if (o.ranks_per_node > 0) return o.ranks_per_node;
  return machine ? static_cast<int>(machine->ranks_per_node) : usual_gpus;
}

/// How many ranks the mesh and the micro-batches of a step keep busy, in parts of a node: a small model needs no whole one.
int ranks_that_work(const PlanOptions& o, const std::optional<MachineProfile>& machine) {
  const int per_node = ranks_of_node(o, machine);
  const ParsedDeck parsed = read_deck(o, o.overrides, 0);  // no ranks are known: mesh.dp is what the deck says, or 0
  if (!parsed.faults.empty()) return per_node;
  const Deck& deck = parsed.deck;
  const std::int64_t of_model = deck.mesh.tp * deck.mesh.pp * deck.mesh.cp;
  if (deck.mesh.dp > 0) return static_cast<int>(std::min<std::int64_t>(deck.mesh.dp * of_model, per_node));
  const std::int64_t busy = of_model * std::max<std::int64_t>(deck.batch.global / deck.batch.micro, 1);
  int ranks = per_node;
  while (ranks > busy && ranks % 2 == 0) ranks /= 2;
  return ranks;
}

/// On the ranks that were asked for, else on the part of a node that they keep busy, else on the fewest nodes, in powers of two, on which
/// the deck is whole and fits.
Sized size_of_job(PlanOptions& o, const std::optional<MachineProfile>& machine) {
  const int per_node = ranks_of_node(o, machine);
  const auto sized = [&](const Deck& deck) {
    const int threads = cores_of(o, deck, machine);
    kernels::plan_for_threads(threads);
    return size(o, deck, per_node, threads);
  };
  if (o.ranks > 0) return sized(require_deck(parse_for(o, machine)));
  if (const int few = ranks_that_work(o, machine); few < per_node) {
    o.ranks = few;
    if (const ParsedDeck parsed = parse_for(o, machine); parsed.faults.empty())
      if (Sized found = sized(parsed.deck); found.fits()) return found;
    o.ranks = 0;
  }
  std::optional<ParsedDeck> faulty;
  std::optional<Sized> largest;
  for (int nodes = 1; nodes <= most_nodes; nodes *= 2) {
    o.ranks = nodes * per_node;
    ParsedDeck parsed = parse_for(o, machine);
    if (!parsed.faults.empty()) {
      if (!faulty) faulty = std::move(parsed);
      continue;
    }
    Sized found = sized(parsed.deck);
    if (found.fits()) return found;
    largest = std::move(found);
  }
  if (!largest) require_deck(*faulty);
  fail(ExitCode::memory,
       "{}No number of nodes from 1 to {}, in powers of two, has enough memory for this deck with {} ranks each. `tessera plan {} --ranks "
       "N` names changes with which it fits",
       print_shortfalls(largest->lacking), most_nodes, per_node, o.path);
}

int run(const SlurmOptions& asked) {
  PlanOptions o = asked.plan;
  const std::optional<MachineProfile> machine = machine_of(o);
  const bool chosen = o.ranks == 0;
  const Sized s = size_of_job(o, machine);
  if (!s.lacking.empty())
    fail(ExitCode::memory, "{}Ask for more ranks; `tessera plan {} --ranks {}` names changes with which it fits",
         print_shortfalls(s.lacking), o.path, o.ranks);
  require_stages_fit(s.stages, s.limits);
  require_phases_fit(s.phases, s.limits);

  JobNeeds needs{.deck = o.path, .overrides = o.overrides, .scripts = folder_of_scripts(), .ranks = o.ranks};
  needs.per_node = ranks_of_node(o, machine);
  needs.cores = cores_of(o, s.deck, machine);
  needs.gpus = s.deck.run.device == RunDevice::cuda;
  const TierBytes room = s.room();
  needs.host_bytes = needs.gpus ? bytes_of(room, MemoryKind::host) : memory_bytes(room);
  needs.state_on_host =
      s.deck.zero.offload_optimizer.device != OffloadDevice::none || s.deck.zero.offload_param.device != OffloadDevice::none;
  needs.steps = s.deck.run.steps;
  needs.hours = asked.hours;
  if (machine) needs.machine = machine->name;
  if (machine && needs.steps > 0) needs.seconds = seconds_of_run(s, *machine);

  const MemoryKind limiting = kernel_memory(s.deck);
  if (chosen)
    needs.notes.push_back(
        s.limits[static_cast<std::size_t>(limiting)]
            ? "nodes: the fewest, in powers of two, that hold the plan; --ranks asks for more"
            : fmt::format(
                  "nodes: the fewest on which the deck is valid, because no memory is stated: give --machine PROFILE, memory.{} or --ranks",
                  name_of(limiting)));
  if (chosen && o.ranks < needs.per_node)
    needs.notes.push_back(fmt::format("tasks: a step of {} sequences in micro-batches of {} keeps no more than {} ranks busy",
                                      s.deck.batch.global, s.deck.batch.micro, o.ranks));
  if (!machine && o.ranks_per_node == 0)
    needs.notes.push_back(fmt::format("{} ranks a node are assumed: --ranks-per-node, or --machine PROFILE, sets it", needs.per_node));
  if (s.deck.run.device == RunDevice::automatic)
    needs.notes.emplace_back("run.device = \"auto\" is planned for the host: run.device=cuda, or --machine PROFILE, asks for GPUs");
  const JobHeader header = job_header(needs);
  if (machine && machine->host_memory > 0 && header.mem_gib > machine->host_memory >> 30)
    fail(ExitCode::memory,
         "a node of {} would need {} GiB of memory and has {} GiB: ask for more ranks (--ranks), or fewer a node (--ranks-per-node)",
         o.machine, header.mem_gib, machine->host_memory >> 30);
  put("{}", asked.plan.json ? job_json(needs, header).dump(2, BadText::replace) + "\n" : print_job(needs, header));
  return 0;
}

}  // namespace

void add_slurm(const Command& app) {
  const Command command = app.command(
      "slurm", "Print the Slurm job script of a deck: nodes, tasks and memory from its plan, time from the simulator; submits nothing");
  auto options = std::make_shared<SlurmOptions>();
  PlanOptions& plan = options->plan;
  plan.ranks = 0;
  command.option("DECK", plan.path, "TOML file").required();
  command.option("key=value", plan.overrides, "Overrides, which the script keeps");
  command.option("--ranks,--gpus", plan.ranks, "Ranks of the run, one for each GPU; 0: those of the fewest nodes that hold the plan")
      .between(0, 1000000)
      .shows_default();
  command.option("--ranks-per-node", plan.ranks_per_node, "Ranks of a node, a GPU each; 0: as in the machine profile, else 8")
      .between(0, 1000000)
      .shows_default();
  command.option("--threads", plan.threads, "Cores of a rank; 0: as in the deck or the machine profile, else 8")
      .between(0, most_threads)
      .shows_default();
  command.option("--machine", plan.machine,
                 "Machine profile (inputs/machines/*.toml, or of `tessera report --measure`): predicts the time, and gives memory and "
                 "ranks of a node");
  command
      .option("--hours", options->hours,
              "Longest time limit of a job, and its limit if nothing predicts the time; a longer run queues itself again")
      .between(0.5, 8760.0)
      .shows_default();
  command.flag("--json", plan.json, "Print one JSON object");
  command.footer(
      "Examples:\n  tessera slurm inputs/train_70b.toml --machine inputs/machines/h100_8.toml > job.sh\n"
      "  tessera slurm inputs/train_70b.toml --ranks 128 --machine inputs/machines/h100_8.toml --hours 12\n"
      "  tessera slurm inputs/train_7b.toml run.device=cuda memory.device=\"80 GB\" --json");
  command.does([options] { return run(*options); });
}

}  // namespace tessera
