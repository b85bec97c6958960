#include "train/run/run_engine.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/log.hpp"
#include "deck/openmp_binding.hpp"
#include "deck/ramp.hpp"
#include "schedule/build/describe_mesh.hpp"
#include "schedule/plan/cross_check.hpp"
#include "schedule/run/connect.hpp"
#include "schedule/run/make_executor.hpp"
#include "topology/communicators/make_communicator.hpp"
#include "train/engine/device.hpp"
#include "train/engine/fit.hpp"
#include "train/run/banner.hpp"
#include "train/run/kernel_choices.hpp"
#include "train/run/plans.hpp"

namespace tessera {
namespace {

template <class T, class F>
std::vector<const Schedule*> pointers_to(const std::vector<T>& all, const F& schedule_of) {
  std::vector<const Schedule*> pointers;
  for (const T& one : all) pointers.push_back(schedule_of(one));
  return pointers;
}

}  // namespace

void RunEngine::build(TrainingData& train, SampleFile* validation, RunPosition& position) {
  bind();
  if (world_.ranks() > 1) links_.node = &node_.emplace(world_);
  if (on_gpus() && world_.ranks() > 1) connect_gpus();
  std::vector<RunPlan> plans = plan_phases();
  if (!on_gpus() && world_.ranks() > 1)
    links_.communicators =
        make_communicators(world_, mesh_, wanted_communicators(pointers_to(plans, [](const RunPlan& plan) { return &plan.schedule; })),
                           {.node = links_.node, .hierarchical = deck_.topology.hierarchical != Hierarchical::never});
  path_ = links_.communicators.path();
  lanes_ = lane_mode(deck_, world_.ranks(), threads_);
  measure_yardstick();
  start_together(world_, [&] {
    const ModelShape shape = model_shape(deck_);
    require_attention(shape), require_fp8(shape), require_true_products(shape, deck_.run.reproducible);
  });
  engine_.emplace(
      std::move(plans),
      EngineOptions{.lanes = lanes_, .kernel_choices = kernel_choices_file(deck_, gpu_), .times_calls = deck_.run.profile && !on_gpus()},
      std::move(links_));
  position.set_role(role_of(mesh_, world_.rank()));
  work_.emplace(world_, [this, &position] {
    RankWork work = position.work();
    engine_->add_under_way(work);
    return work;
  });
  feed_.emplace(world_, *engine_, train, validation);
  if (overhead_) overhead_->count("libraries", engine_->room()[static_cast<std::size_t>(Tier::device)]);
  show();
}

void RunEngine::bind() {
  binding_ = bind_process(world_);
  if (const std::string left = left_openmp_binding(); !left.empty())
    info(
        "{} of the environment are not used: on each rank they would start at the node's first core. Tessera binds ranks to separate "
        "cores; to place threads yourself, bind the ranks by the launcher.",
        left);
  threads_ = deck_.run.threads > 0 ? static_cast<int>(deck_.run.threads) : binding_.threads;
  if (on_gpus()) gpu_ = bind_gpu(world_, binding_, deck_.topology.share_gpu);
  runtime_.emplace(threads_, spaces_of(deck_.run.device), gpu_.device);
  if (on_gpus()) overhead_.emplace(used_device_memory), overhead_->count("CUDA context");
}

void RunEngine::connect_gpus() {
  std::vector<Schedule> drafts;
  for (std::size_t phase = 0; phase < phases_of(deck_); ++phase) {
    drafts.push_back(draft_schedule(world_, deck_in_phase(deck_, phase), mesh_));
    require_same_schedules(world_, mesh_, drafts.back());
  }
  links_.communicators = make_communicators(world_, mesh_, wanted_communicators(pointers_to(drafts, [](const Schedule& s) { return &s; })),
                                            {.node = links_.node, .path = CommunicatorPath::nccl});
  for (const Schedule& draft : drafts) connect(links_.communicators, draft);
  overhead_->count("NCCL");
}

std::vector<RunPlan> RunEngine::plan_phases() const {
  std::vector<RunPlan> plans;
  for (std::size_t phase = 0; phase < phases_of(deck_); ++phase) {
    plans.push_back(
        plan_for_this_machine(world_, deck_in_phase(deck_, phase), mesh_, {.node = world_.place().local_ranks, .gpu = gpu_.sharing}));
    require_same_schedules(world_, mesh_, plans.back().schedule);
    if (plans.back().request.stage.count > 1) require_fitting_stages(world_, plans.back());
  }
  return plans;
}

/// The product is measured once: beside other ranks and with a GPU, whose memory is taken later, never again. Rank 0's is told.
void RunEngine::measure_yardstick() {
  const DType dtype = deck_.precision.compute;
  // Cores that all compute are slower, so ranks measure at the same time. If they share cores, rank 0 alone does.
  const bool here = world_.rank() == 0 || on_gpus() || binding_.sharing == 1;
  if (!deck_.run.machine.empty()) {
    std::optional<MachineProfile> machine;
    start_together(world_, [&] { machine = machine_of_run(deck_); });
    if (const ComputeRates& rates = machine->rates(dtype); rates.given()) {
      yardstick_.emplace(rates.peak * world_.ranks());
      mfu_of_ = fmt::format("MFU is a share of {:.4g} TFLOP/s a rank, the peak of {} (run.machine)", rates.peak * 1e-12, machine->name);
      return;
    }
  }
  const kernels::Backend backend = model_shape(deck_).backend;
  constexpr std::int64_t small = 1024;  // 16 MB beside the plan
  yardstick_.emplace(
      here ? known_gemm_rate(dtype, backend, world_.place().local_ranks) * world_.ranks() : 0,
      [=] { return measure_gemm_rate(dtype, backend, small); }, world_.ranks() == 1 && backend == kernels::Backend::host ? 3 : 0);
  mfu_of_ = fmt::format("measured {} GEMM {:.0f} GFLOP/s over all ranks", name_of(dtype), yardstick_->rate() * 1e-9);
}

void RunEngine::show() {
  const BannerFacts facts{.parsed = parsed_,
                          .ranks = world_.map_of_ranks(),
                          .mesh = describe(mesh_) + describe_tensor(deck_, mesh_) + describe_context(deck_, mesh_),
                          .path = path_,
                          .lanes = lanes_,
                          .threads = threads_,
                          .binding = on_gpus() ? fmt::format("{}; {}", describe(binding_), describe(gpu_)) : describe(binding_),
                          .mfu_of = mfu_of_,
                          .attention = describe_attention(engine_->schedule().shape),
                          .engine = *engine_};
  print_banner(facts);
  if (world_.rank() == 0) plan_ = whole_plan(facts);
}

}  // namespace tessera
