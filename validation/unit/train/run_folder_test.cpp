// The folder of a run: made, taken again, refused, moved aside.
#include "train/folder/run_folder.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "../model/random_models.hpp"
#include "../scratch.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/format.hpp"
#include "train/folder/start_point.hpp"
#include "train/save/save_room.hpp"

namespace tessera::run_folder_test {
namespace {

namespace fs = std::filesystem;

class Folder : public testing::Test {
 protected:
  test::Scratch scratch_;
  std::string path_ = scratch_ / "run";
  Deck deck(std::vector<std::string> overrides = {}) const {
    overrides.push_back("run.output_dir=" + path_);
    return test::tiny_deck(overrides);
  }
  /// What rank 0 does at a start, up to the claim: the lock is the start's as long as that lives.
  static StartPoint examine(const Deck& deck, double patience = 0) {
    StartPoint start = reach_run_folder(deck);
    start.lock.wait(patience, patience);
    examine_run_folder(deck, start);
    return start;
  }
  static StartPoint open_run_folder(const Deck& deck) {
    StartPoint start = examine(deck);
    const RunClaim claim = claim_run_folder(deck, start);
    return start;
  }
  /// A complete checkpoint of one small tensor, in the line that the folder's run is on.
  void save(std::int64_t step, std::int64_t keep = 0, std::int64_t keep_every = 0) const {
    const std::string root = path_ + "/checkpoints", line = test::slurp(line_file(root));
    io::CheckpointLayout layout{.units = {{"u", 512}}, .tensors = {{"t", {16, 32}, 0, 0}}, .groups = {"master"}, .shards = 1};
    const std::vector<float> values(512, 1.0f);
    const std::vector<io::ShardSlice> slices = {{0, 0, std::span<const float>(values)}};
    io::begin_checkpoint(root, step);
    io::write_shard(root, step, layout, 0, slices);
    io::write_index(root, layout,
                    {.step = step,
                     .sample_cursor = 0,
                     .seed = 1,
                     .deck = print_deck(deck()),
                     .identity = "",
                     .version = "test",
                     .lineage = line.empty() ? io::Lineage(1) : io::parse_lineage(line, "")});
    io::commit_checkpoint(root, step, {.newest = keep, .every = keep_every});
  }
  std::string step(std::int64_t number) const { return path_ + "/checkpoints/" + io::checkpoint_name(number); }
  std::int64_t line() const { return io::parse_lineage(test::slurp(line_file(path_ + "/checkpoints")), "").back().number; }
  std::string resume(const std::string& what) const { return open_run_folder(deck({"run.resume=" + what})).checkpoint; }
  std::string go_on() const { return open_run_folder(deck()).checkpoint; }
};

TEST_F(Folder, ANewRunHasItsDeckAndNoCheckpoint) {
  const StartPoint start = open_run_folder(deck());
  EXPECT_EQ(start.checkpoint, "");
  EXPECT_TRUE(fs::is_directory(path_ + "/checkpoints"));
  EXPECT_EQ(test::slurp(path_ + "/deck.toml"), print_deck(deck()));
}

/// What lies under the names of a run's small files, put there by somebody: devices, and terabytes of nothing.
TEST_F(Folder, FilesWithoutEndAreNotReadToTheirEnd) {
  for (const std::string name : {"/deck.toml", "/checkpoints/line.json"})
    for (const bool device : {true, false}) {
      SCOPED_TRACE(name);
      fs::remove_all(path_);
      open_run_folder(deck());
      save(1);
      fs::remove(path_ + name);
      if (device)
        fs::create_symlink("/dev/zero", path_ + name);
      else
        test::spill(path_ + name, ""), fs::resize_file(path_ + name, std::uintmax_t{1} << 40);
      try {
        open_run_folder(deck());
        ADD_FAILURE() << "it was taken";
      } catch (const Error& error) {
        EXPECT_TRUE(test::has(error.what(), path_ + name)) << error.what();
      }
    }
}

TEST_F(Folder, ASecondRunIsRefusedWhileTheFirstIsAtWork) {
  const auto refused = [&](const std::string& when) {
    for (const auto& overrides : {std::vector<std::string>{}, {"model.width=40", "run.overwrite=true"}}) {
      const std::string text = test::error_of(ExitCode::environment, [&] { examine(deck(overrides), 0.05); });
      EXPECT_TRUE(test::has(text, path_)) << when << text;
      EXPECT_TRUE(test::has(text, fmt::format("process {} on ", getpid()))) << when << text;
    }
  };
  {
    StartPoint start = examine(deck());
    refused("two that started together: ");
    const RunClaim first = claim_run_folder(deck(), start);
    refused("at work: ");
    StartPoint nothing = std::move(start);
    refused("a start that has been claimed is over: ");
  }
  EXPECT_NO_THROW(examine(deck())) << "the lock outlived its run";
}

/// The second start came while the first was at work: what it found then, were it to look, is not what it goes on from.
TEST_F(Folder, AStartThatWaitedSeesWhatTheOtherRunSaved) {
  StartPoint first = examine(deck()), second = reach_run_folder(deck());
  EXPECT_FALSE(second.lock.wait(0, 10));
  {
    RunClaim claim = claim_run_folder(deck(), first);
    save(3);
    claim.say_leaving();
    EXPECT_FALSE(second.lock.wait(0, 0)) << "a run that leaves is waited for, however long it takes";
  }
  EXPECT_TRUE(second.lock.wait(0, 0));
  examine_run_folder(deck(), second);
  EXPECT_EQ(second.checkpoint, step(3));
  const RunClaim claim = claim_run_folder(deck(), second);
  EXPECT_EQ(claim.lineage().back().number, 1) << "goes on, in the same line";
}

/// One that waits for a start which moves the folder aside, or is refused and takes it back, locks what is there afterwards.
TEST_F(Folder, AStartThatWaitedLocksTheFolderThatIsThere) {
  open_run_folder(deck());
  const std::vector<std::string> other{"model.width=40", "run.overwrite=true"};
  {
    StartPoint first = examine(deck(other)), second = reach_run_folder(deck());
    EXPECT_FALSE(second.lock.wait(0, 10));
    const RunClaim claim = claim_run_folder(deck(other), first);
    EXPECT_FALSE(second.lock.wait(0, 10)) << "it holds what was moved aside";
  }
  EXPECT_TRUE(test::has(test::error_of(ExitCode::usage, [&] { examine(deck()); }), "another deck"));
  fs::remove_all(path_);
  StartPoint second = reach_run_folder(deck());
  {
    StartPoint first = examine(deck());
    EXPECT_FALSE(second.lock.wait(0, 10));
  }
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_TRUE(second.lock.wait(0, 10));
  EXPECT_TRUE(second.lock.stands());
}

TEST_F(Folder, ExaminingLeavesNoTrace) {
  examine(deck());
  EXPECT_FALSE(fs::exists(path_));
  path_ = scratch_ / "new/folders/run";
  examine(deck());
  EXPECT_THROW(examine(deck({"run.resume=elsewhere/step-00000009"})), Error);
  EXPECT_FALSE(fs::exists(scratch_ / "new"));
  open_run_folder(deck());
  const std::string lock = test::slurp(path_ + "/run.lock");
  examine(deck({"model.width=40", "run.overwrite=true"}));
  EXPECT_FALSE(fs::exists(path_ + ".old-1"));
  EXPECT_THROW(examine(deck({"model.width=40"})), Error);
  EXPECT_EQ(test::slurp(path_ + "/run.lock"), lock);
}

/// Whoever may write beside the folder could have a run empty another file of its user.
TEST_F(Folder, ALockThatIsALinkIsRefused) {
  open_run_folder(deck());
  test::spill(scratch_ / "mine", "precious");
  fs::remove(path_ + "/run.lock");
  fs::create_symlink(scratch_ / "mine", path_ + "/run.lock");
  EXPECT_TRUE(test::has(test::error_of(ExitCode::storage, [&] { examine(deck()); }), "run.lock"));
  EXPECT_EQ(test::slurp(scratch_ / "mine"), "precious");
}

TEST_F(Folder, OverwriteKeepsARunOfTheSameDeckGoing) {
  // A requeued job starts with the same command line: it must go on, not begin anew.
  open_run_folder(deck({"run.overwrite=true"}));
  save(3);
  EXPECT_TRUE(test::has(open_run_folder(deck({"run.overwrite=true"})).checkpoint, "step-00000003"));
}

TEST_F(Folder, TheSameDeckGoesOnFromTheLatestCheckpoint) {
  open_run_folder(deck());
  save(3);
  save(7);
  const StartPoint start = open_run_folder(deck());
  EXPECT_TRUE(test::has(start.checkpoint, "step-00000007")) << start.checkpoint;
}

/// A run killed while it removes an old checkpoint after its last save: the next start has nothing to save, so it must clear this away
/// itself.
TEST_F(Folder, AStartRemovesWhatAKilledSaveLeft) {
  open_run_folder(deck());
  save(59);
  save(60);
  const std::string root = path_ + "/checkpoints";
  fs::rename(root + "/step-00000059", root + "/step-00000059.removed.partial");
  fs::create_directory(root + "/step-00000061.partial");
  EXPECT_TRUE(test::has(open_run_folder(deck()).checkpoint, "step-00000060"));
  for (const auto& entry : fs::directory_iterator(root)) EXPECT_NE(entry.path().extension(), ".partial") << entry.path();
  EXPECT_NO_THROW(io::CheckpointReader(root + "/latest").verify({}));
}

TEST_F(Folder, LayoutMayChangeBetweenRuns) {
  open_run_folder(deck());
  EXPECT_NO_THROW(open_run_folder(deck({"zero.stage=3", "run.log_every=5", "kernels.loss_chunk=8", "checkpoint.every=3"})));
}

TEST_F(Folder, AnotherDeckIsRefusedByTheKeysThatDiffer) {
  open_run_folder(deck());
  const std::string before = test::slurp(path_ + "/deck.toml");
  const std::string text = test::error_of(ExitCode::usage, [&] {
    open_run_folder(deck({"model.width=40", "run.seed=99", "zero.stage=2"}));
  });
  for (const char* part : {"model.width = 32, here 40", "run.seed = 1, here 99", "run.overwrite=true"})
    EXPECT_TRUE(test::has(text, part)) << text;
  EXPECT_FALSE(test::has(text, "stage")) << "keys that may differ are not the cause: " << text;
  EXPECT_EQ(test::slurp(path_ + "/deck.toml"), before) << "the other run's deck was overwritten";
}

TEST_F(Folder, OnlyKeysThatMatterAreNamed) {
  open_run_folder(deck());
  const std::string text = test::error_of(ExitCode::usage, [&] {
    open_run_folder(deck({"model.width=40", "run.log_every=7", "checkpoint.keep=5", "run.lanes=inline"}));
  });
  EXPECT_TRUE(test::has(text, "width")) << text;
  for (const char* harmless : {"log_every", "keep", "lanes"}) EXPECT_FALSE(test::has(text, harmless)) << text;
}

TEST_F(Folder, ARunMayBeMadeLonger) {
  open_run_folder(deck());
  save(3);
  EXPECT_TRUE(test::has(open_run_folder(deck({"run.steps=99"})).checkpoint, "step-00000003"));
}

TEST_F(Folder, OverwriteMovesTheOtherRunAside) {
  open_run_folder(deck());
  save(3);
  const StartPoint start = open_run_folder(deck({"model.width=40", "run.overwrite=true"}));
  EXPECT_EQ(start.checkpoint, "");
  EXPECT_EQ(test::slurp(path_ + ".old-1/deck.toml"), print_deck(deck()));
  EXPECT_TRUE(fs::exists(path_ + ".old-1/checkpoints/step-00000003/checkpoint.h5"));
  open_run_folder(deck({"model.width=48", "run.overwrite=true"}));
  EXPECT_TRUE(fs::exists(path_ + ".old-2/deck.toml")) << "an earlier run was lost";
  EXPECT_TRUE(fs::exists(path_ + ".old-1/deck.toml"));
}

TEST_F(Folder, OverwriteWorksWithATrailingSlash) {
  open_run_folder(deck());
  Deck other = deck({"model.width=40", "run.overwrite=true"});
  other.run.output_dir += "/";
  open_run_folder(other);
  EXPECT_TRUE(fs::exists(path_ + ".old-1/deck.toml")) << "moved into itself or elsewhere";
}

TEST_F(Folder, NeverRefusesCheckpointsToMixWith) {
  EXPECT_NO_THROW(open_run_folder(deck({"run.resume=never"})));
  EXPECT_NO_THROW(open_run_folder(deck({"run.resume=never"})));
  save(3);
  const std::string text = test::error_of(ExitCode::usage, [&] { open_run_folder(deck({"run.resume=never"})); });
  EXPECT_TRUE(test::has(text, "run.overwrite=true")) << text;
  EXPECT_EQ(open_run_folder(deck({"run.resume=never", "run.overwrite=true"})).checkpoint, "");
}

TEST_F(Folder, ResumeMayNameACheckpoint) {
  open_run_folder(deck());
  save(3);
  save(7);
  const std::string named = path_ + "/checkpoints/step-00000003";
  EXPECT_EQ(open_run_folder(deck({"run.resume=" + named})).checkpoint, named);
  const std::string text = test::error_of(ExitCode::checkpoint, [&] { examine(deck({"run.resume=elsewhere/step-00000009"})); });
  EXPECT_TRUE(test::has(text, "elsewhere/step-00000009")) << text;
}

// Going back

/// A job that is queued again and again with run.resume=RUN/checkpoints/step-40.
TEST_F(Folder, GoingBackHappensOnce) {
  open_run_folder(deck());
  for (int n : {20, 40, 60, 80}) save(n);
  EXPECT_EQ(resume(step(40)), step(40));
  EXPECT_EQ(line(), 2);
  EXPECT_EQ(resume(step(40)), step(40)) << "killed before it saved: there is nothing else to go on from";
  EXPECT_EQ(go_on(), step(40)) << "also for another command: the rows after step 40 are gone";
  EXPECT_EQ(line(), 2) << "the same line still";
  save(50);
  EXPECT_EQ(resume(step(40)), step(50));
  EXPECT_EQ(go_on(), step(50));
  save(60);
  fs::remove_all(step(40));  // as checkpoint.keep does
  EXPECT_EQ(resume(step(40)), step(60)) << "what was gone back to is not needed any more";
  EXPECT_EQ(resume(step(40) + "/checkpoint.h5"), step(60));
  EXPECT_EQ(line(), 2);
  EXPECT_EQ(resume(step(80)), step(80)) << "an abandoned one may be taken up again, once";
  EXPECT_EQ(line(), 3);
  save(90);
  EXPECT_EQ(resume(step(80)), step(90));
}

TEST_F(Folder, GoingBackWithinALineThatWentBack) {
  open_run_folder(deck());
  for (int n : {20, 40}) save(n);
  resume(step(20));
  save(30);
  save(40);
  EXPECT_EQ(resume(step(30)), step(30));
  save(35);
  EXPECT_EQ(resume(step(30)), step(35));
  EXPECT_EQ(resume(step(20)), step(35)) << "its line began at 20, and that was done";
  EXPECT_EQ(resume(step(40)), step(40)) << "of the line before";
}

TEST_F(Folder, GoingBackToTheNewestIsGoingBackToo) {
  open_run_folder(deck());
  save(40);
  EXPECT_EQ(resume(step(40)), step(40));
  save(60);
  EXPECT_EQ(resume(step(40)), step(60));
  EXPECT_EQ(resume(path_ + "/checkpoints/latest"), step(60)) << "latest is no step to go back to";
  EXPECT_EQ(line(), 2);
}

TEST_F(Folder, AnotherRunsCheckpointIsNeededOnce) {
  open_run_folder(deck());
  save(40);
  const std::string other = scratch_ / "other";
  fs::rename(path_, other);
  const std::string named = other + "/checkpoints/step-00000040";
  EXPECT_EQ(resume(named), named);
  EXPECT_EQ(line(), 1);
  EXPECT_EQ(resume(named), named) << "nothing saved yet";
  save(50);
  EXPECT_EQ(resume(named), step(50));
  fs::remove_all(named);
  EXPECT_EQ(resume(named), step(50)) << "the other run's checkpoint.keep has removed it";
  EXPECT_TRUE(test::has(test::error_of(ExitCode::checkpoint, [&] { resume(other + "/checkpoints/step-00000041"); }), "step-00000041"));
}

TEST_F(Folder, MilestonesStay) {
  open_run_folder(deck());
  const auto there = [&] {
    std::vector<std::int64_t> steps;
    for (std::int64_t n = 10; n <= 120; n += 10)
      if (fs::exists(step(n))) steps.push_back(n);
    return steps;
  };
  for (std::int64_t n = 10; n <= 60; n += 10) save(n, 2, 30);
  EXPECT_EQ(there(), (std::vector<std::int64_t>{30, 50, 60})) << "of the newest two one may be such a step too";
  save(70, 2, 30);
  save(80, 2, 30);
  EXPECT_EQ(there(), (std::vector<std::int64_t>{30, 60, 70, 80}));
  // Back to 60: what the run did not come through goes when the new line has overtaken it, milestone or not.
  save(90, 2, 30);
  EXPECT_EQ(there(), (std::vector<std::int64_t>{30, 60, 80, 90}));
  EXPECT_EQ(resume(step(60)), step(60));
  save(100, 2, 30);
  save(110, 2, 30);
  EXPECT_EQ(there(), (std::vector<std::int64_t>{30, 60, 100, 110})) << "90 is of the line that was left";
  // Without the key they go.
  save(120, 2);
  EXPECT_EQ(there(), (std::vector<std::int64_t>{110, 120}));
}

TEST_F(Folder, KeepLeavesWhatTheLineCameFromUntilItHasItsOwn) {
  open_run_folder(deck());
  for (int n : {20, 40, 60, 80}) save(n);
  resume(step(40));
  save(50, 2);
  EXPECT_TRUE(fs::exists(step(20)) && fs::exists(step(40)) && fs::exists(step(60)));
  save(70, 2);
  EXPECT_FALSE(fs::exists(step(20)) || fs::exists(step(40)) || fs::exists(step(60)));
  EXPECT_TRUE(fs::exists(step(50)) && fs::exists(step(70)) && fs::exists(step(80))) << "80 is ahead of the new line";
  EXPECT_EQ(resume(step(40)), step(70));
}

TEST_F(Folder, CheckpointsFromBeforeLinesGoOnAndBack) {
  open_run_folder(deck());
  fs::remove(path_ + "/checkpoints/line.json");
  for (int n : {3, 7}) save(n);  // of line 0
  EXPECT_EQ(go_on(), step(7));
  EXPECT_EQ(line(), 0);
  EXPECT_EQ(resume(step(3)), step(3));
  EXPECT_EQ(line(), 1);
  save(5);
  EXPECT_EQ(resume(step(3)), step(5));
}

// What cannot be read

TEST_F(Folder, ACheckpointThatCannotBeReadIsNoNewRun) {
  open_run_folder(deck());
  for (int n : {3, 7}) save(n);
  fs::copy(step(3), scratch_ / "other", fs::copy_options::recursive);
  fs::remove(step(7) + "/checkpoint.h5");
  const std::string text = test::error_of(ExitCode::checkpoint, [&] { open_run_folder(deck()); });
  for (const char* part : {"step-00000007/checkpoint.h5", "run.resume=newest-good", "run.resume=PATH", "run.resume=never"})
    EXPECT_TRUE(test::has(text, part)) << text;
  EXPECT_TRUE(test::has(test::error_of(ExitCode::checkpoint, [&] { resume(scratch_ / "other"); }), "step-00000007/checkpoint.h5"));
  EXPECT_EQ(examine(deck({"run.resume=newest-good"})).candidates, std::vector<std::string>{step(3)});
  EXPECT_EQ(resume(step(3)), step(3)) << "PATH";
  EXPECT_EQ(line(), 2);
  EXPECT_EQ(go_on(), step(3)) << "the run has gone back";
  EXPECT_TRUE(test::has(test::error_of(ExitCode::usage, [&] { resume("never"); }), "run.overwrite=true"));
  EXPECT_EQ(open_run_folder(deck({"run.resume=never", "run.overwrite=true"})).checkpoint, "");
}

/// A start that goes back because of damage, and is queued again when the newest of its own is damaged.
TEST_F(Folder, GoingBackOnceAlsoWhenTheNewestCannotBeRead) {
  open_run_folder(deck());
  for (int n : {20, 40}) save(n);
  resume(step(20));
  save(30);
  fs::remove(step(30) + "/checkpoint.h5");
  const std::string text = test::error_of(ExitCode::checkpoint, [&] { resume(step(20)); });
  EXPECT_TRUE(test::has(text, "step-00000030/checkpoint.h5")) << text;
  EXPECT_EQ(examine(deck({"run.resume=newest-good"})).candidates, (std::vector<std::string>{step(20), step(40)}));
}

TEST_F(Folder, NothingThereIsNothing) {
  EXPECT_EQ(resume("newest-good"), "");
  EXPECT_EQ(go_on(), "");
  fs::remove_all(path_ + "/checkpoints");
  EXPECT_EQ(go_on(), "");
}

TEST_F(Folder, FoldersThatCannotBeReachedAreRefused) {
  open_run_folder(deck());
  save(3);
  fs::rename(path_ + "/checkpoints", scratch_ / "elsewhere");
  fs::create_symlink("checkpoints", path_ + "/checkpoints");
  std::string text = test::error_of(ExitCode::environment, [&] { open_run_folder(deck()); });
  EXPECT_TRUE(test::has(text, "Too many levels of symbolic links")) << text;
  fs::remove(path_ + "/checkpoints");
  fs::create_symlink("gone", path_ + "/checkpoints");
  text = test::error_of(ExitCode::environment, [&] { open_run_folder(deck()); });
  EXPECT_TRUE(test::has(text, "it is a link to nothing")) << text;
  fs::remove(path_ + "/checkpoints");
  fs::create_directory_symlink(scratch_ / "elsewhere", path_ + "/checkpoints");
  EXPECT_EQ(go_on(), step(3)) << "a link to another disk is fine";
}

TEST_F(Folder, ACopyThatFollowedLinksGoesOn) {
  open_run_folder(deck());
  for (int n : {3, 7}) save(n);
  const std::string root = path_ + "/checkpoints";
  fs::remove(root + "/latest");
  fs::copy(step(7), root + "/latest", fs::copy_options::recursive);
  EXPECT_EQ(go_on(), step(7));
  EXPECT_EQ(fs::read_symlink(root + "/latest"), "step-00000007");
  fs::remove(root + "/latest");
  fs::rename(step(7), root + "/latest");  // only this one was copied
  EXPECT_EQ(go_on(), root + "/latest");
  EXPECT_EQ(fs::read_symlink(root + "/latest"), "step-00000007");
  EXPECT_EQ(line(), 1);
  EXPECT_EQ(go_on(), step(7));
}

// Moved and removed under the run

TEST_F(Folder, AFolderThatIsMovedAwayIsMadeAgain) {
  StartPoint start = examine(deck());
  RunClaim claim = claim_run_folder(deck(), start);
  claim.renew();
  fs::rename(path_, path_ + "-moved");
  testing::internal::CaptureStderr();
  claim.renew();
  claim.renew();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(test::has(said, path_ + " was moved or removed")) << said;
  EXPECT_EQ(said.find("was moved or removed"), said.rfind("was moved or removed")) << "said once: " << said;
  EXPECT_EQ(test::slurp(path_ + "/deck.toml"), print_deck(deck()));
  EXPECT_EQ(line(), 1);
  EXPECT_TRUE(test::has(test::error_of(ExitCode::environment, [&] { examine(deck()); }), "another run")) << "locked again";
}

/// The old one goes only when the new one is whole; what the line has on disk is room that it gets back.
TEST_F(Folder, RoomThatSavesNeed) {
  auto needed = [&](std::vector<std::string> keys, std::int64_t first, std::int64_t own, std::int64_t constant = 0) {
    keys.push_back("run.steps=100");
    return disk_bytes_needed(deck(keys), first, own, {10, constant});
  };
  EXPECT_EQ(needed({"checkpoint.every=10", "checkpoint.keep=2"}, 0, 0), 30);
  EXPECT_EQ(needed({"checkpoint.every=10", "checkpoint.keep=2"}, 50, 2), 10);
  EXPECT_EQ(needed({"checkpoint.every=10", "checkpoint.keep=2"}, 50, 9), 10) << "one must fit before any goes";
  EXPECT_EQ(needed({"checkpoint.every=10", "checkpoint.keep=2"}, 90, 0), 10) << "there is one save left";
  EXPECT_EQ(needed({"checkpoint.every=10", "checkpoint.keep=0"}, 0, 0), 100) << "all stay";
  EXPECT_EQ(needed({"checkpoint.every=0"}, 0, 0), 10);
  EXPECT_EQ(needed({"checkpoint.every=10", "checkpoint.keep=2", "checkpoint.keep_every=50"}, 0, 0), 50) << "two stay for ever";
  EXPECT_EQ(needed({"checkpoint.every=10", "checkpoint.keep=2", "checkpoint.keep_every=10"}, 0, 0), 100);
  EXPECT_EQ(needed({"checkpoint.every=10"}, 100, 0), 0) << "done already";
  EXPECT_EQ(needed({"checkpoint.every=10", "checkpoint.keep=2", "checkpoint.weights_every=25"}, 0, 0), 30 + 4 * 4) << "weights stay";
  EXPECT_EQ(needed({"checkpoint.every=10", "checkpoint.keep=2"}, 0, 0, 1000), 1030) << "what no step changes is written once";
  EXPECT_EQ(needed({"checkpoint.every=10", "checkpoint.keep=2", "checkpoint.weights_every=25"}, 0, 0, 1000), 30 + 4 * 4 + 2000);
}

TEST_F(Folder, ALockThatIsNoRegularFileIsRefusedAndNotWaitedFor) {
  const std::string lock = path_ + "/run.lock";
  std::filesystem::create_directories(path_);
  for (const bool pipe : {true, false}) {
    ASSERT_EQ(pipe ? mkfifo(lock.c_str(), 0600) : mkdir(lock.c_str(), 0700), 0);
    RunLock run(path_);
    EXPECT_HAS(test::error_of(ExitCode::storage, [&] { run.wait(0, 0); }), "run.lock");
    EXPECT_EQ(holder_of(path_), "") << "whoever looks does not wait either";
    std::filesystem::remove(lock);
  }
}

TEST_F(Folder, WhoeverLooksAtALockKeepsNobodyOut) {
  {
    RunLock made(path_);
    made.wait(0, 0), made.keep();
  }
  EXPECT_EQ(holder_of(path_), "");
  const int file = open((path_ + "/run.lock").c_str(), O_RDONLY);
  ASSERT_EQ(flock(file, LOCK_SH | LOCK_NB), 0);
  std::thread looks([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    close(file);
  });
  RunLock lock(path_);
  EXPECT_NO_THROW(lock.wait(0, 0));
  looks.join();
  EXPECT_TRUE(lock.held());
}

TEST_F(Folder, RoomThatTheNextSavesNeed) {
  auto needed = [&](std::vector<std::string> keys, std::int64_t step, std::int64_t own) {
    keys.push_back("run.steps=100");
    return next_saves_bytes(deck(keys), step, own, {10, 1000});
  };
  EXPECT_EQ(needed({"checkpoint.every=10", "checkpoint.keep=2"}, 50, 2), 10) << "for each the oldest goes";
  EXPECT_EQ(needed({"checkpoint.every=10", "checkpoint.keep=2"}, 10, 1), 20) << "there are to be two, and one more";
  EXPECT_EQ(needed({"checkpoint.every=10", "checkpoint.keep=0"}, 50, 5), 20) << "all stay";
  EXPECT_EQ(needed({"checkpoint.every=10", "checkpoint.keep=0"}, 90, 9), 10) << "there is one left";
  EXPECT_EQ(needed({"checkpoint.every=10", "checkpoint.keep=2"}, 100, 2), 0);
  EXPECT_EQ(needed({"checkpoint.every=10", "checkpoint.keep=2", "checkpoint.keep_every=10"}, 50, 2), 20) << "what goes stays for ever";
  EXPECT_EQ(needed({"checkpoint.every=0"}, 50, 1), 10);
}

TEST_F(Folder, AFileInTheWayIsNamed) {
  test::spill(path_, "a file");
  const std::string text = test::error_of(ExitCode::environment, [&] { open_run_folder(deck()); });
  EXPECT_TRUE(test::has(text, path_)) << text;
  EXPECT_TRUE(test::has(text, "run.output_dir")) << text;
}

TEST_F(Folder, NoPermissionIsNamed) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  fs::create_directories(path_ + "/checkpoints");
  fs::permissions(path_, fs::perms::owner_read | fs::perms::owner_exec);
  const std::string text = test::error_of(ExitCode::environment, [&] { open_run_folder(deck()); });
  fs::permissions(path_, fs::perms::owner_all);
  EXPECT_TRUE(test::has(text, "permission")) << text;
}

TEST_F(Folder, WhatIsNoLockIsNotWritten) {
  for (const bool link : {true, false}) {
    open_run_folder(deck());
    fs::remove(path_ + "/run.lock");
    test::spill(scratch_ / "victim", "precious");
    if (link)
      fs::create_symlink(scratch_ / "victim", path_ + "/run.lock");
    else
      fs::create_hard_link(scratch_ / "victim", path_ + "/run.lock");
    const std::string text = test::error_of(ExitCode::storage, [&] { open_run_folder(deck()); });
    EXPECT_TRUE(test::has(text, "run.lock")) << text;
    EXPECT_EQ(test::slurp(scratch_ / "victim"), "precious");
    fs::remove(path_ + "/run.lock");
  }
}

TEST_F(Folder, ADeckCutShortByAKillDoesNotBlockTheRun) {
  // deck.toml is replaced at every start: a kill in between must leave the old text or the new one.
  open_run_folder(deck());
  for (const auto& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename();
    EXPECT_TRUE(name == "deck.toml" || name == "checkpoints" || name == "run.lock") << name << " stayed";
  }
  const auto before = fs::hard_link_count(path_ + "/deck.toml");
  fs::create_hard_link(path_ + "/deck.toml", scratch_ / "old-deck");
  open_run_folder(deck({"run.log_every=5"}));
  EXPECT_EQ(test::slurp(scratch_ / "old-deck"), print_deck(deck())) << "the file was rewritten in place, not replaced";
  EXPECT_EQ(before, 1u);
}

}  // namespace
}  // namespace tessera::run_folder_test
