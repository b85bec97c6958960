#include "train/run/trainer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "deck/openmp_binding.hpp"
#include "deck/ramp.hpp"
#include "exchange/adapter_export.hpp"
#include "exchange/carried_files.hpp"
#include "exchange/initial_weights.hpp"
#include "io/files/path_state.hpp"
#include "memory/runtime.hpp"
#include "model/record/flops.hpp"
#include "schedule/build/describe_mesh.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/plan/cross_check.hpp"
#include "schedule/run/connect.hpp"
#include "schedule/run/make_executor.hpp"
#include "topology/communicators/make_communicator.hpp"
#include "topology/devices/binding.hpp"
#include "topology/devices/gpu_binding.hpp"
#include "topology/failure/signals.hpp"
#include "train/data/batch_feed.hpp"
#include "train/data/data_identity.hpp"
#include "train/data/run_tokenizer.hpp"
#include "train/data/training_data.hpp"
#include "train/engine/device.hpp"
#include "train/engine/device_overhead.hpp"
#include "train/engine/engine.hpp"
#include "train/engine/fit.hpp"
#include "train/engine/machine_rate.hpp"
#include "train/folder/run_folder.hpp"
#include "train/folder/start_point.hpp"
#include "train/folder/way_back.hpp"
#include "train/observe/exposition.hpp"
#include "train/observe/ledger.hpp"
#include "train/observe/run_notices.hpp"
#include "train/run/banner.hpp"
#include "train/run/copies_at_start.hpp"
#include "train/run/kernel_choices.hpp"
#include "train/run/plans.hpp"
#include "train/run/step_loop.hpp"
#include "train/save/resume_proof.hpp"
#include "train/save/save_room.hpp"
#include "train/save/saving.hpp"
#include "train/text/sample_texts.hpp"

namespace tessera {
namespace {

StartPoint agree_on_start(const World& world, const Deck& deck) {
  StartPoint start{.folder = {deck.run.output_dir}};
  const auto on_rank_0 = [&](const auto& part) {
    world.together([&] {
      leave_if_stopped();
      if (world.rank() == 0) part();
    });
  };
  on_rank_0([&] { start = reach_run_folder(deck); });
  // In pieces: no collective waits for the end of another run, and a signal is heard meanwhile.
  for (bool waits = true; waits; waits = world.sum(waits) > 0) {
    waits = false;
    on_rank_0([&] { waits = !start.lock.wait(0.5); });
  }
  on_rank_0([&] { examine_run_folder(deck, start); });
  require_seen_by_all(world, start.folder.path, start.lock.claim());
  if (deck.run.resume == "newest-good")
    start.checkpoint = choose_verified(world, "run.resume = newest-good", start.candidates);
  else
    start.checkpoint = world.broadcast_text(start.checkpoint);
  return start;
}

template <class T, class F>
std::vector<const Schedule*> pointers_to(const std::vector<T>& all, const F& schedule_of) {
  std::vector<const Schedule*> pointers;
  for (const T& one : all) pointers.push_back(schedule_of(one));
  return pointers;
}

/// One run's moving parts.
class Training {
 public:
  Training(World& world, const ParsedDeck& parsed)
      : world_(world), parsed_(parsed), deck_(parsed_.deck), begin_(now_seconds()), flops_(flops_per_token(deck_)) {}

  int run() {
    // 1. What every rank must agree on, before anything is touched.
    require_same_deck();
    world_.limit_waits(static_cast<double>(deck_.topology.collective_timeout));
    // 2. The run folder and where to start from.
    StartPoint start = agree_on_start(world_, deck_);
    begin_notices(start.folder);
    read_initial(start);
    // 3. Data.
    together([&] {
      if (world_.rank() == 0) endpoint_ = open_exposition(deck_.metrics);
      train_.emplace(deck_);
      if (deck_.evaluate.every > 0)
        validation_.emplace(deck_.data.validation, deck_.batch.sequence_length, deck_.model.vocab, deck_.data, deck_.run.seed);
    });
    train_->check(&world_);
    if (validation_) validation_->check(&world_);
    together([&] {
      if (world_.rank() != 0) return;
      data_ = train_->records();
      if (!start.checkpoint.empty() &&
          !goes_on_with(io::CheckpointReader(start.checkpoint), data_, is_of_folder(start), deck_.run.overwrite))
        begin_anew(start);
    });
    start.checkpoint = world_.broadcast_text(start.checkpoint);
    RunTokenizer tokenizer;  // rank 0's
    together([&] { tokenizer = agree_on_tokenizer(start); });
    samples_ = read_sample_texts(world_, deck_, tokenizer);
    parsed_.deck.data.tokenizer = world_.broadcast_text(tokenizer.digest);  // what the run's folder and its checkpoints carry
    read_initial(start);                                                    // where the data have said that the run begins anew
    // 4. Plan, memory, lanes.
    build_engine();
    // 5. State: a checkpoint, a model that run.init names, or new weights.
    copies_.emplace(world_, deck_, *engine_, start);
    const std::optional<std::int64_t> copied = copies_->restore(start, data_, position_);
    first_step_ = copied ? *copied : restore(start);
    proof_.emplace(world_, deck_, start.folder.checkpoints(), copied ? "" : start.checkpoint, data_);
    // 6. Nothing can be refused any more: the folder is ours.
    std::string staged;  // where the last start did, by rank 0
    together([&] {
      if (world_.rank() != 0) return;
      staged = last_staging(start.folder);
      claim_.emplace(claim_run_folder(deck_, start, plan_));
      if (const std::string log = start.folder.log(); !io::look_at(log).nothing())
        info("{} holds what earlier starts said when nobody read their log any more", log);
      log_outlives_its_reader(start.folder.log());
      keep_files(tokenizer, start.folder.path);
      warn_of_adapter(start.folder.path + "/tokenizer");
      info("the whole deck is in {}, the whole plan in {}", start.folder.deck(), start.folder.plan());
      foresee_full_disk(*engine_, world_.ranks(), deck_, first_step_, start.folder.checkpoints(), claim_->lineage());
    });
    require_best(start);
    clear_last_staging(world_, world_.broadcast_text(staged), deck_, start.folder);
    copies_->claim(start);
    follow_way_back(start);
    // 7. Steps, and those from a checkpoint on where the run goes back by itself.
    while (true) {
      if (const std::optional<ExitCode> status = make_steps(start)) {
        ledger_->end(*status);
        notices_.end(ledger_->done(), *status == ExitCode::ok ? "finished" : "signal", static_cast<int>(*status));
        return static_cast<int>(*status);
      }
      go_back(start);
    }
  }

  /// The run ends by this.
  void failed(const Error& error) {
    ledger_->end(error.code, error.what());
    notices_.end(ledger_->done(), std::string(error.code == ExitCode::interrupted ? "signal: " : "failed: ") + error.what(),
                 static_cast<int>(error.code));
    // Whoever goes on after these takes a checkpoint.
    const bool in_vain = error.code == ExitCode::internal || error.code == ExitCode::numerics;
    if (copies_ && in_vain) copies_->abandon();
  }

 private:
  /// Rank 0: from here on somebody hears how the run ends.
  void begin_notices(const RunFolder& folder) {
    if (world_.rank() != 0) return;
    notices_.begin(deck_.run.notify, deck_.run.notify_limit,
                   {{"run", deck_.run.name},
                    {"folder", std::filesystem::absolute(folder.path).lexically_normal().string()},
                    {"host", world_.place().host},
                    {"ranks", world_.ranks()},
                    {"steps", deck_.run.steps}});
  }

  /// All that are left; none where the run is to go back.
  std::optional<ExitCode> make_steps(const StartPoint& start) {
    const RunParts parts{.world = world_,
                         .deck = deck_,
                         .engine = *engine_,
                         .feed = *feed_,
                         .data = *train_,
                         .folder = start.folder,
                         .claim = claim_ ? &*claim_ : nullptr,
                         .ledger = *ledger_,
                         .notices = notices_,
                         .overhead = overhead_ ? &*overhead_ : nullptr,
                         .yardstick = *yardstick_,
                         .flops = flops_,
                         .lanes = lanes_,
                         .first_step = first_step_,
                         .launched = begin_,
                         .endpoint = endpoint_.get(),
                         .position = position_,
                         .neighbours = copies_->neighbours(),
                         .copies = copies_->record(),
                         .samples = samples_ ? &*samples_ : nullptr,
                         .going_back = going_back_,
                         .agreed = agreed_,
                         .left_out = lines_.back().way.left_out,
                         .went_back = std::exchange(going_back_.why, "")};
    together([&] {
      if (world_.rank() != 0) return;
      ledger_->begin(parts);
      if (parts.went_back.empty()) return;
      ledger_->warned(first_step_, parts.went_back);
      notices_.tell("back", first_step_, {{"text", parts.went_back}});
    });
    StepLoop loop(parts, *proof_, start.checkpoint, data_);
    return loop.run();
  }

  /// To a checkpoint before the last step, or an older one each time that no checkpoint from beyond it followed.
  void go_back(StartPoint& start) {
    begin_ = now_seconds();
    position_.turn_to("the way back to a checkpoint");
    const std::int64_t step = going_back_.step, taken = engine_->run_values().samples_left_out;
    const bool of_data = going_back_.leaves_data_out;
    io::WayBack way = lines_.back().way;
    io::Ways& ways = of_data ? way.spikes : way.faults;
    count_way(ways, step, deck_.checkpoint.every);
    const std::int64_t target = of_data ? step_to_go_back_to(deck_.checkpoint, lines_.front().from_step, step, ways) : step;
    std::vector<std::string> candidates = places_to_go_back_to(start.folder, ways, target);
    do {
      start.checkpoint = choose_verified(world_, "the run, which goes back by itself,", candidates);
      read_initial(start);
      first_step_ = restore(start);
    } while (holds_what_no_task_wrote(start.checkpoint, candidates));
    const std::int64_t at = std::max(first_step_, target);
    std::vector<io::LeftOut> more;
    if (of_data) more.push_back({.after = at, .samples = taken + samples_in(deck_, step) - samples_in(deck_, at)});
    way.left_out = left_out_from(left_out_along(lines_), first_step_, at, more);
    going_back_.why += describe_way_back(target, way.left_out);
    copies_->remove();  // they are of what nobody sees any more
    // With other data the steps that follow are others, and rightly so.
    proof_.emplace(world_, deck_, start.folder.checkpoints(), way.left_out.empty() ? start.checkpoint : "", data_);
    world_.together([&] {
      if (world_.rank() != 0) return;
      warning("{}", going_back_.why);
      claim_->go_back(start.checkpoint, going_back_.why, way);
    });
    agree_on_lines();
    ledger_.emplace();
  }

  /// Rank 0's, the first one to take first.
  std::vector<std::string> places_to_go_back_to(const RunFolder& folder, const io::Ways& ways, std::int64_t target) const {
    std::vector<std::string> places;
    world_.together([&] {
      if (ways.times > deck_.guards.rollback_limit)
        fail(ExitCode::numerics,
             "{}. The run has gone back {} times without a checkpoint from beyond that step (guards.rollback_limit): what is wrong comes "
             "with its data, its keys or this machine. Look at the steps before, and begin a run of its own from an earlier checkpoint "
             "with other keys: run.output_dir=NEW run.resume={}/step-N",
             going_back_.why, ways.times - 1, folder.checkpoints());
      if (world_.rank() != 0) return;
      places = going_back_.leaves_data_out ? checkpoints_for(folder.checkpoints(), lines_, target, going_back_.step, deck_.checkpoint.every)
                                           : checkpoints_before(folder.checkpoints(), lines_, going_back_.step, ways.times - 1);
    });
    return places;
  }

  std::string describe_way_back(std::int64_t target, const std::vector<io::LeftOut>& left_out) const {
    const std::string back = fmt::format("; the run went back to step {}", first_step_);
    if (!going_back_.leaves_data_out) return back;
    const std::int64_t samples = left_out.back().samples - engine_->run_values().samples_left_out;
    if (first_step_ == target) return fmt::format("{}, and leaves out {} samples that the steps since were made of", back, samples);
    const std::string missing = fmt::format("{}, since no checkpoint of step {} can be read", back, target);
    if (first_step_ < target)
      return fmt::format("{}. It makes the steps up to {} again, and leaves out there what the steps since were made of", missing, target);
    return fmt::format(
        "{}, nor one from shortly before, and leaves out {} samples that the steps since were made of. A run that kept it has other "
        "numbers "
        "from here on (checkpoint.keep)",
        missing, samples);
  }

  /// Whether what was read from there is not what all copies were after that step. Then rank 0's candidates are those before it.
  bool holds_what_no_task_wrote(const std::string& checkpoint, std::vector<std::string>& candidates) {
    if (checkpoint.empty() || deck_.guards.digest_every == 0) return false;
    if (world_.sum(std::int64_t{agreed_.differ(first_step_, engine_->digest_copies())}) == 0) return false;
    world_.together([&] {
      if (world_.rank() != 0) return;
      warning("{} holds state that no task wrote: memory changed after step {} and before it was saved. It is passed over", checkpoint,
              first_step_);
      candidates.erase(candidates.begin(), std::next(std::ranges::find(candidates, checkpoint)));
      if (candidates.empty())
        fail(ExitCode::checkpoint,
             "{}, and no checkpoint before {} is left to go back to. Go on from one of another run by run.resume=PATH "
             "run.output_dir=NEW, and keep more of them (checkpoint.keep)",
             going_back_.why, checkpoint);
    });
    return true;
  }

  /// Where the checkpoint of the best evaluation is gone, the next one is the best again.
  void require_best(const StartPoint& start) {
    EvaluationRecord& record = engine_->evaluations();
    if (!deck_.checkpoint.keep_best || record.best_step < 0 || record.best_step == first_step_) return;
    const std::string path = fmt::format("{}/{}", start.folder.checkpoints(), io::checkpoint_name(record.best_step));
    const bool gone = world_.rank() == 0 && io::look_at(path).nothing();
    if (world_.sum(std::int64_t{gone}) == 0) return;
    if (world_.rank() == 0)
      info("{}, the checkpoint of the best evaluation so far ({:.4f}), is gone: the next evaluation is the best again", path, record.best);
    record.best_step = -1;
  }

  /// Goes on from the ways back that earlier starts went, and leaves out what they left out, so that a run that is killed meanwhile ends as
  /// one that nobody disturbed.
  void follow_way_back(const StartPoint& start) {
    agree_on_lines();
    const std::vector<io::LeftOut>& left_out = lines_.back().way.left_out;
    const std::int64_t samples = left_out_by(left_out, first_step_) - engine_->run_values().samples_left_out;
    if (left_out.empty() || (samples <= 0 && left_out.back().after < first_step_)) return;
    proof_.emplace(world_, deck_, start.folder.checkpoints(), "", data_);
    if (world_.rank() == 0)
      info("an earlier start had gone back: this one leaves out the same after step {}, {} samples in all", left_out.back().after,
           left_out.back().samples);
  }

  /// All ranks have the lines of rank 0's claim.
  void agree_on_lines() {
    lines_ = io::parse_lineage(world_.broadcast_text(claim_ ? io::lineage_text(claim_->lineage()) : ""), "the lines of rank 0");
  }

  /// The model that new weights are those of: what cannot be served is said before time is spent.
  void read_initial(const StartPoint& start) {
    if (!initial_ && start.checkpoint.empty() && !deck_.run.init.empty()) together([&] { initial_.emplace(deck_, world_.rank() == 0); });
  }

  /// Rank 0's: the run's tokenizer, of which its token files must be.
  RunTokenizer agree_on_tokenizer(const StartPoint& start) const {
    if (world_.rank() != 0) return {};
    RunTokenizer tokenizer = find_tokenizer(deck_, start.move_aside ? "" : start.folder.path, start.checkpoint);
    for (const SampleFile& file : train_->files()) require_tokenizer(tokenizer, file);
    if (validation_) {
      require_tokenizer(tokenizer, *validation_);
      for (const SampleFile& file : train_->files()) require_same_tokenizer(*validation_, file);
    }
    for (const SampleFile& file : train_->files())
      if (tokenizer.digest.empty()) tokenizer.digest = file.tokenizer_digest();
    return tokenizer;
  }

  void require_same_deck() const {
    world_.require_like_rank_0(print_deck(deck_), [&](const std::string& of_rank_0) {
      const std::vector<std::string> differing = deck_differences(parse_deck_text(of_rank_0, "the deck of rank 0", {}, 0).deck, deck_);
      return fmt::format(
          "the deck of rank {} on {} differs from that of rank 0: {}. All ranks must read the same deck with the same "
          "overrides; compare the nodes",
          world_.rank(), world_.place().host, fmt::join(differing, "; "));
    });
  }

  /// What would be refused only after the training. `kept`: where the model's small files are.
  void warn_of_adapter(const std::string& kept) const {
    if (deck_.model.lora.rank == 0) return;
    if (const std::string why = adapter_fault(deck_, engine_->layout().model_table(), kept); !why.empty())
      warning(
          "`tessera consolidate --adapter` will refuse this run: {}. Without --adapter it writes the whole model, with the adapter in its "
          "weights. For an adapter of its own choose other lora.targets.",
          why);
  }

  void together(const std::function<void()>& part) const { start_together(world_, part); }

  void build_engine() {
    const Binding binding = bind_process(world_);
    if (const std::string left = left_openmp_binding(); !left.empty())
      info(
          "{} of the environment are not used: on each rank they would begin at the node's first core. Ranks are bound apart here; bind "
          "them by "
          "the launcher to place their threads yourself.",
          left);
    const int threads = deck_.run.threads > 0 ? static_cast<int>(deck_.run.threads) : binding.threads;
    const bool on_gpus = deck_.run.device == RunDevice::cuda;
    const GpuBinding gpu = on_gpus ? bind_gpu(world_, binding, deck_.topology.share_gpu) : GpuBinding{};
    runtime_.emplace(threads, spaces_of(deck_.run.device), gpu.device);
    if (on_gpus) overhead_.emplace(used_device_memory), overhead_->count("CUDA context");
    const Mesh mesh = make_mesh(deck_, world_.ranks());
    RankLinks links;
    if (world_.ranks() > 1) links.node = &node_.emplace(world_);
    if (on_gpus && world_.ranks() > 1) {
      // NCCL takes what it needs before the plan takes what is left.
      std::vector<Schedule> drafts;
      for (std::size_t phase = 0; phase < phases_of(deck_); ++phase) {
        drafts.push_back(draft_schedule(world_, deck_in_phase(deck_, phase), mesh));
        require_same_schedules(world_, mesh, drafts.back());
      }
      links.communicators =
          make_communicators(world_, mesh, wanted_communicators(pointers_to(drafts, [](const Schedule& s) { return &s; })),
                             {.node = links.node, .path = CommunicatorPath::nccl});
      for (const Schedule& draft : drafts) connect(links.communicators, draft);
      overhead_->count("NCCL");
    }
    std::vector<RunPlan> plans;
    for (std::size_t phase = 0; phase < phases_of(deck_); ++phase) {
      plans.push_back(
          plan_for_this_machine(world_, deck_in_phase(deck_, phase), mesh, {.node = world_.place().local_ranks, .gpu = gpu.sharing}));
      require_same_schedules(world_, mesh, plans.back().schedule);
      if (plans.back().request.stage.count > 1) require_fitting_stages(world_, plans.back());
    }
    if (!on_gpus && world_.ranks() > 1)
      links.communicators =
          make_communicators(world_, mesh, wanted_communicators(pointers_to(plans, [](const RunPlan& plan) { return &plan.schedule; })),
                             {.node = links.node, .hierarchical = deck_.topology.hierarchical != Hierarchical::never});
    path_ = links.communicators.path();
    lanes_ = lane_mode(deck_, world_.ranks(), threads);
    measure_yardstick(world_.rank() == 0 || on_gpus || binding.sharing == 1);
    together([&] {
      const ModelShape shape = model_shape(deck_);
      require_attention(shape), require_fp8(shape), require_true_products(shape, deck_.run.reproducible);
    });
    engine_.emplace(
        std::move(plans),
        EngineOptions{.lanes = lanes_, .kernel_choices = kernel_choices_file(deck_, gpu), .times_calls = deck_.run.profile && !on_gpus},
        std::move(links));
    position_.set_role(role_of(mesh, world_.rank()));
    work_.emplace(world_, [this] {
      RankWork work = position_.work();
      engine_->add_under_way(work);
      return work;
    });
    feed_.emplace(world_, *engine_, *train_, validation_ ? &*validation_ : nullptr);
    if (overhead_) overhead_->count("libraries", engine_->room()[static_cast<std::size_t>(Tier::device)]);
    const BannerFacts facts{.parsed = parsed_,
                            .ranks = world_.map_of_ranks(),
                            .mesh = describe(mesh) + describe_tensor(deck_, mesh) + describe_context(deck_, mesh),
                            .path = path_,
                            .lanes = lanes_,
                            .threads = threads,
                            .binding = on_gpus ? fmt::format("{}; {}", describe(binding), describe(gpu)) : describe(binding),
                            .mfu_of = mfu_of_,
                            .attention = describe_attention(engine_->schedule().shape),
                            .engine = *engine_};
    print_banner(facts);
    if (world_.rank() == 0) plan_ = whole_plan(facts);
  }

  /// Beside other ranks, or with a GPU whose memory is taken by now, the product is measured once. Rank 0's is told; the others measure at
  /// the same time where `here`, since cores that all compute are slower. Where ranks share cores they would take turns.
  void measure_yardstick(bool here) {
    const DType dtype = deck_.precision.compute;
    if (!deck_.run.machine.empty()) {
      std::optional<MachineProfile> machine;
      together([&] { machine = machine_of_run(deck_); });
      if (const ComputeRates& rates = machine->rates(dtype); rates.given()) {
        yardstick_.emplace(rates.peak * world_.ranks());
        mfu_of_ = fmt::format("MFU is of {:.4g} TFLOP/s a rank, the peak of {} (run.machine)", rates.peak * 1e-12, machine->name);
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

  std::int64_t restore(const StartPoint& start) {
    const std::string& checkpoint = start.checkpoint;
    engine_->evaluations() = {};
    if (checkpoint.empty()) {
      if (!initial_) return engine_->initialise_weights(), 0;
      position_.turn_to("the reading of initial weights");
      load_initial_weights(world_, *engine_, *initial_);
      initial_.reset();
      return 0;
    }
    std::int64_t step = 0;
    together([&] {
      const io::CheckpointReader reader(checkpoint);
      step = reader.meta().step;
      const BatchKeys batch = deck_in_phase(deck_, phase_after(deck_, step)).batch;
      const auto& values = reader.meta().values;
      const auto left_out = std::ranges::find(values, "samples_left_out", &io::CheckpointValue::name);
      const std::int64_t expected = samples_in(deck_, step) + (left_out == values.end() ? 0 : static_cast<std::int64_t>(left_out->number));
      if (const std::int64_t cursor = reader.meta().sample_cursor; cursor != expected)
        warning("{} had seen {} samples in {} steps: this run goes on from sample {}, {} a step", reader.folder(), cursor, step, cursor,
                samples_of_step(batch));
    });
    engine_->begin_in(phase_after(deck_, step));
    position_.turn_to("the loading of a checkpoint");
    load_checkpoint(world_, *engine_, checkpoint);
    if (!is_of_folder(start)) engine_->evaluations() = {};  // of another run, whose checkpoints are not here
    info("resumed from {} at step {} of {}", checkpoint, step, deck_.run.steps);
    return step;
  }

  World& world_;
  ParsedDeck parsed_;
  const Deck& deck_;
  double begin_;
  std::optional<Yardstick> yardstick_;
  std::string mfu_of_;  ///< a line on it
  FlopsPerToken flops_;
  std::string path_ = "none", plan_;  ///< plan_: rank 0's, for its folder
  LaneMode lanes_ = LaneMode::inline_order;
  std::int64_t first_step_ = 0;
  std::optional<InitialWeights> initial_;  ///< until they are read
  std::optional<TrainingData> train_;
  std::optional<SampleFile> validation_;
  std::optional<SampleTexts> samples_;
  std::vector<io::CheckpointData> data_;           ///< rank 0's: what the files hold
  std::optional<RunClaim> claim_;                  ///< rank 0's
  std::unique_ptr<io::MetricsEndpoint> endpoint_;  ///< rank 0's; goes before whoever waits for the folder may want its port
  std::optional<Ledger> ledger_{std::in_place};    ///< rank 0's begins with the steps
  RunNotices notices_;                             ///< rank 0's
  GoingBack going_back_;
  AgreedCopies agreed_;
  io::Lineage lines_;  ///< of descent: how the run came to where it is
  std::optional<ResumeProof> proof_;
  std::optional<KernelRuntime> runtime_;
  std::optional<Node> node_;
  std::optional<Engine> engine_;
  std::optional<CopiesAtStart> copies_;
  std::optional<BatchFeed> feed_;
  std::optional<DeviceOverhead> overhead_;
  RunPosition position_;
  std::optional<DescribedWork> work_;  ///< of the engine: goes before it
};

}  // namespace

int run_training(World& world, const ParsedDeck& parsed) {
  Training training(world, parsed);
  try {
    return training.run();
  } catch (const AgreedError& error) {
    training.failed(error);
    throw;
  } catch (const Error& error) {
    training.failed(error);
    // Said while the run's memory still stands: after a fault of a GPU, freeing it may end the process or wait for ever.
    world.abort_all(error.code, error.what());
  }
}

}  // namespace tessera
