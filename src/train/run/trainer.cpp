#include "train/run/trainer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "exchange/adapter_export.hpp"
#include "exchange/carried_files.hpp"
#include "io/files/path_state.hpp"
#include "model/record/flops.hpp"
#include "train/data/data_identity.hpp"
#include "train/data/run_tokenizer.hpp"
#include "train/data/training_data.hpp"
#include "train/folder/run_folder.hpp"
#include "train/observe/exposition.hpp"
#include "train/observe/ledger.hpp"
#include "train/observe/run_notices.hpp"
#include "train/run/agree_on_start.hpp"
#include "train/run/copies_at_start.hpp"
#include "train/run/initial_state.hpp"
#include "train/run/plans.hpp"
#include "train/run/rollback.hpp"
#include "train/run/run_engine.hpp"
#include "train/run/step_loop.hpp"
#include "train/save/resume_proof.hpp"
#include "train/save/save_room.hpp"
#include "train/save/saving.hpp"
#include "train/text/sample_texts.hpp"

namespace tessera {
namespace {

/// One run's moving parts.
class Training {
 public:
  Training(World& world, const ParsedDeck& parsed)
      : world_(world),
        parsed_(parsed),
        deck_(parsed_.deck),
        begin_(now_seconds()),
        flops_(flops_per_token(deck_)),
        initial_(world, deck_),
        rollback_(world, deck_) {}

  int run() {
    // 1. What every rank must agree on, before anything is touched.
    require_same_deck();
    world_.limit_waits(static_cast<double>(deck_.topology.collective_timeout));
    // 2. The run folder and where to start from.
    StartPoint start = agree_on_start(world_, deck_);
    begin_notices(start.folder);
    initial_.foresee(start);
    // 3. Data.
    const RunTokenizer tokenizer = open_data(start);
    // 4. Plan, memory, lanes.
    engine_.emplace(world_, parsed_);
    engine_->build(*train_, validation_ ? &*validation_ : nullptr, position_);
    // 5. State: copies in memory, a checkpoint, a model that run.init names, or new weights.
    copies_.emplace(world_, deck_, engine_->engine(), start);
    const std::optional<std::int64_t> copied = copies_->restore(start, data_, position_);
    first_step_ = copied ? *copied : restore(start);
    proof_.emplace(world_, deck_, start.folder.checkpoints(), copied ? "" : start.checkpoint, data_);
    // 6. Nothing can be refused any more: the folder is ours.
    claim(start, tokenizer);
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

  /// Opens the data, which may say that the run begins anew. Returns rank 0's tokenizer.
  RunTokenizer open_data(StartPoint& start) {
    together([&] {
      if (world_.rank() == 0) endpoint_ = open_exposition(deck_.metrics);
      train_.emplace(deck_);
      if (deck_.evaluate.every > 0)
        validation_.emplace(deck_.data.validation, deck_.batch.sequence_length, deck_.model.vocab, deck_.data, deck_.run.seed,
                            preference_use(deck_));
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
    RunTokenizer tokenizer;
    together([&] { tokenizer = agree_on_tokenizer(start); });
    samples_ = read_sample_texts(world_, deck_, tokenizer);
    parsed_.deck.data.tokenizer = world_.broadcast_text(tokenizer.digest);  // what the run's folder and its checkpoints carry
    initial_.foresee(start);
    return tokenizer;
  }

  /// Takes the run folder, and goes on from the rollbacks of earlier starts: a run that is killed meanwhile ends as one that nobody
  /// disturbed.
  void claim(StartPoint& start, const RunTokenizer& tokenizer) {
    std::string staged;  // where the last start did, by rank 0
    together([&] {
      if (world_.rank() != 0) return;
      staged = last_staging(start.folder);
      claim_.emplace(claim_run_folder(deck_, start, engine_->plan()));
      if (const std::string log = start.folder.log(); !io::look_at(log).nothing())
        info("{} holds messages of earlier starts from times when their log was no longer read", log);
      log_outlives_its_reader(start.folder.log());
      keep_files(tokenizer, start.folder.path);
      warn_of_adapter(start.folder.path + "/tokenizer");
      info("the whole deck is in {}, the whole plan in {}", start.folder.deck(), start.folder.plan());
      foresee_full_disk(engine_->engine(), world_.ranks(), deck_, first_step_, start.folder.checkpoints(), claim_->lineage());
    });
    require_best(start);
    clear_last_staging(world_, world_.broadcast_text(staged), deck_, start.folder);
    copies_->claim(start);
    rollback_.take_lineage(claim_ ? &*claim_ : nullptr);
    if (!rollback_.leaves_out_after(first_step_, engine_->engine())) return;
    proof_.emplace(world_, deck_, start.folder.checkpoints(), "", data_);
    if (world_.rank() == 0)
      info("an earlier start rolled back: this one leaves out the same samples after step {}, {} in all", rollback_.left_out().back().after,
           rollback_.left_out().back().samples);
  }

  std::int64_t restore(const StartPoint& start) { return initial_.restore(start, engine_->engine(), position_); }

  /// All that are left; none where the run is to go back.
  std::optional<ExitCode> make_steps(const StartPoint& start) {
    const RunParts parts{.world = world_,
                         .deck = deck_,
                         .engine = engine_->engine(),
                         .feed = engine_->feed(),
                         .data = *train_,
                         .folder = start.folder,
                         .claim = claim_ ? &*claim_ : nullptr,
                         .ledger = *ledger_,
                         .notices = notices_,
                         .overhead = engine_->overhead(),
                         .yardstick = engine_->yardstick(),
                         .flops = flops_,
                         .lanes = engine_->lanes(),
                         .first_step = first_step_,
                         .launched = begin_,
                         .endpoint = endpoint_.get(),
                         .position = position_,
                         .neighbours = copies_->neighbours(),
                         .copies = copies_->record(),
                         .samples = samples_ ? &*samples_ : nullptr,
                         .going_back = rollback_.going_back,
                         .agreed = rollback_.agreed,
                         .left_out = rollback_.left_out(),
                         .went_back = std::exchange(rollback_.going_back.why, ""),
                         .proof = *proof_,
                         .checkpoint = start.checkpoint,
                         .records = data_};
    together([&] {
      if (world_.rank() != 0) return;
      ledger_->begin(parts);
      if (parts.went_back.empty()) return;
      ledger_->warned(first_step_, parts.went_back);
      notices_.tell("back", first_step_, {{"text", parts.went_back}});
    });
    return StepLoop(parts).run();
  }

  void go_back(StartPoint& start) {
    begin_ = now_seconds();
    position_.turn_to("the rollback to a checkpoint");
    first_step_ = rollback_.go_back(start, engine_->engine(), [&] {
      initial_.foresee(start);
      return restore(start);
    });
    copies_->remove();  // they are of what nobody sees any more
    rollback_.record(start, claim_ ? &*claim_ : nullptr);
    // With other data the steps that follow are others, and rightly so.
    proof_.emplace(world_, deck_, start.folder.checkpoints(), rollback_.left_out().empty() ? start.checkpoint : "", data_);
    ledger_.emplace();
  }

  /// Where the checkpoint of the best evaluation is gone, the next one is the best again.
  void require_best(const StartPoint& start) {
    EvaluationRecord& record = engine_->engine().evaluations();
    if (!deck_.checkpoint.keep_best || record.best_step < 0 || record.best_step == first_step_) return;
    const std::string path = fmt::format("{}/{}", start.folder.checkpoints(), io::checkpoint_name(record.best_step));
    const bool gone = world_.rank() == 0 && io::look_at(path).nothing();
    if (world_.sum(std::int64_t{gone}) == 0) return;
    if (world_.rank() == 0)
      info("{}, the checkpoint of the best evaluation so far ({:.4f}), is missing: the next evaluation becomes the best", path,
           record.best);
    record.best_step = -1;
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
          "the deck of rank {} on {} differs from the deck of rank 0: {}. All ranks must read the same deck with the same overrides; "
          "compare the nodes",
          world_.rank(), world_.place().host, fmt::join(differing, "; "));
    });
  }

  /// What would be refused only after the training. `kept`: where the model's small files are.
  void warn_of_adapter(const std::string& kept) const {
    if (deck_.model.lora.rank == 0) return;
    if (const std::string why = adapter_fault(deck_, engine_->engine().layout().model_table(), kept); !why.empty())
      warning(
          "`tessera consolidate --adapter` will refuse this run: {}. Without --adapter it writes the whole model, with the adapter merged "
          "into its weights. For a separate adapter choose other lora.targets.",
          why);
  }

  void together(const std::function<void()>& part) const { start_together(world_, part); }

  World& world_;
  ParsedDeck parsed_;
  const Deck& deck_;
  double begin_;
  FlopsPerToken flops_;
  std::int64_t first_step_ = 0;
  InitialState initial_;
  std::optional<TrainingData> train_;
  std::optional<SampleFile> validation_;
  std::optional<SampleTexts> samples_;
  std::vector<io::CheckpointData> data_;           ///< rank 0's: what the files hold
  std::optional<RunClaim> claim_;                  ///< rank 0's
  std::unique_ptr<io::MetricsEndpoint> endpoint_;  ///< rank 0's; goes before whoever waits for the folder may want its port
  std::optional<Ledger> ledger_{std::in_place};    ///< rank 0's begins with the steps
  RunNotices notices_;                             ///< rank 0's
  Rollback rollback_;
  std::optional<ResumeProof> proof_;
  RunPosition position_;
  std::optional<RunEngine> engine_;
  std::optional<CopiesAtStart> copies_;
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
