// The parts of the watch over ranks that need no second process: words, patience, links.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "../scratch.hpp"
#include "base/hash.hpp"
#include "topology/failure/account.hpp"
#include "topology/failure/link.hpp"
#include "topology/failure/patience.hpp"
#include "topology/failure/start.hpp"
#include "topology/failure/whereabouts.hpp"

namespace tessera::failure_test {
namespace {

const std::vector<std::string> hosts{"n1", "n1", "n2", "n2", "n2"};

RankNote note_of(int rank, std::map<std::string, double> waits, std::string work = "") {
  RankNote note;
  note.rank = rank, note.answered = true;
  note.note.waits = std::move(waits);
  if (!work.empty()) note.note.work.tasks.push_back({"compute", std::move(work), 1});
  return note;
}

TEST(Account, RanksAreNamedWithTheirHosts) {
  EXPECT_EQ(name_ranks(std::vector{0}, hosts), "rank 0 on n1");
  EXPECT_EQ(name_ranks(std::vector{0, 1, 2, 3, 4}, hosts), "ranks 0-1 on n1, 2-4 on n2");
  EXPECT_EQ(name_ranks(std::vector{0, 2, 4}, hosts), "ranks 0 on n1, 2, 4 on n2");
}

TEST(Account, WhoIsNotInTheCollectiveIsNamed) {
  const std::string wait = "all_reduce (call 3)";
  RankNote stopped = note_of(4, {}, "forward layers.2");
  stopped.answered = false, stopped.age = 7;
  const std::vector<RankNote> notes{note_of(0, {{wait, 5}}), note_of(1, {{wait, 5}}), note_of(2, {{wait, 4}}),
                                    note_of(3, {{"the world's barrier", 5}}), stopped};
  EXPECT_EQ(
      explain_wait(notes, hosts, wait),
      "ranks 0-1 on n1, 2 on n2 wait there, for:\n  rank 4 on n2 does not answer: it is stopped, or its node hangs. Last report 7 s ago: "
      "runs compute: `forward layers.2` for 1 s\n  rank 3 on n2 has waited 5 s in the world's barrier");
}

TEST(Account, WhereAllAreThereMpiIsSaidToHang) {
  const std::vector<RankNote> notes{note_of(0, {{"a barrier", 1}}), note_of(1, {{"a barrier", 1}})};
  EXPECT_NE(explain_wait(notes, hosts, "a barrier").find("MPI or the network"), std::string::npos);
}

TEST(Account, NotesReadBack) {
  std::vector<RankNote> notes{note_of(0, {{"a", 1}, {"b", 2}}, "x"), note_of(1, {})};
  notes[1].ended = true, notes[1].answered = false, notes[1].age = 3;
  const std::vector<RankNote> back = parse_notes(print_notes(notes));
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[0].note.waits, notes[0].note.waits);
  ASSERT_EQ(back[0].note.work.tasks.size(), 1u);
  EXPECT_EQ(back[0].note.work.tasks[0].task, "x");
  EXPECT_TRUE(back[1].ended && !back[1].answered && back[1].age == 3);
}

TEST(Note, ReadsBack) {
  Note note{.waits = {{"all_reduce (call 3)", 2}}, .work = {}};
  note.work.step = 12, note.work.program = "train", note.work.still = 1.5, note.work.beside = "a disk\treads";
  note.work.tasks = {{"compute", "forward layers.2", 3}, {"gather", "gather layers.3", 2}};
  note.work.spent = {.role = 1, .steps = 7, .seconds = {{"forward", 0.25}}};
  const Note back = Note::parse(note.print());
  EXPECT_EQ(back.waits, note.waits);
  EXPECT_EQ(back.work.step, 12);
  EXPECT_EQ(back.work.program, "train");
  EXPECT_EQ(back.work.still, 1.5);
  EXPECT_EQ(back.work.beside, "a disk reads");
  ASSERT_EQ(back.work.tasks.size(), 2u);
  EXPECT_EQ(back.work.tasks[1].lane, "gather");
  EXPECT_EQ(back.work.tasks[1].task, "gather layers.3");
  EXPECT_EQ(back.work.spent.role, 1);
  EXPECT_EQ(back.work.spent.steps, 7);
  EXPECT_EQ(back.work.spent.seconds, note.work.spent.seconds);
  EXPECT_EQ(note.describe(),
            "has waited 2 s in all_reduce (call 3); runs compute: `forward layers.2` for 3 s, gather: `gather layers.3` for 2 s; a "
            "disk\treads (step 12)");
  EXPECT_LT(Note::parse("").work.still, 0) << "nothing is known";
}

TEST(LongWait, IsNotedUntilItEndsAndStaysNotedWhereItFailed) {
  Whereabouts where;
  {
    LongWait wait(&where);
    wait.lasts(1, [] { return std::string("a barrier"); });
    EXPECT_TRUE(where.note().waits.contains("a barrier"));
  }
  EXPECT_TRUE(where.note().waits.empty());
  try {
    LongWait wait(&where);
    wait.lasts(1, [] { return std::string("a broadcast"); });
    throw 1;
  } catch (int) {
  }
  EXPECT_TRUE(where.note().waits.contains("a broadcast"));
}

TEST(Patience, CountsWaitingAndForgetsTimeInWhichNobodyRan) {
  Patience patience;
  const double begin = now_seconds();
  EXPECT_NEAR(patience.waited(begin + 0.25), 0.25, 0.1);
  EXPECT_NEAR(patience.waited(begin + 1), 1, 0.1);
  EXPECT_EQ(patience.waited(begin + 100), 0) << "a jump";
  EXPECT_NEAR(patience.waited(begin + 100.5), 0.5, 1e-6);
}

TEST(Start, WhatMpiHasTooLittleOfIsSaid) {
  constexpr std::int64_t mib = 1 << 20;
  EXPECT_EQ(describe_scarcity(64 * mib, 1024, 20, 8), "");
  EXPECT_EQ(describe_scarcity(-1, -1, 20, 8), "") << "unknown or unlimited";
  EXPECT_TRUE(test::has(describe_scarcity(63 * mib, 1024, 20, 8), "/dev/shm has 63.00 MiB free")) << "eight ranks on the node";
  EXPECT_EQ(describe_scarcity(63 * mib, 84, 20, 1), "");
  const std::string both = describe_scarcity(0, 22, 19, 1);
  for (const char* part : {"/dev/shm has 0 B free", "enlarge it", "may open 22 files and has 19 open", "ulimit -n"})
    EXPECT_TRUE(test::has(both, part)) << both;
}

TEST(Start, ReadsSlurmsListsOfHosts) {
  using Hosts = std::vector<std::string>;
  EXPECT_EQ(expand_hosts(""), Hosts{});
  EXPECT_EQ(expand_hosts("n1"), Hosts{"n1"});
  EXPECT_EQ(expand_hosts("n[1-3,07],login,gpu[08-10]-ib"), (Hosts{"n1", "n2", "n3", "n07", "login", "gpu08-ib", "gpu09-ib", "gpu10-ib"}));
}

TEST(Start, NamesRanksThatHaveNotCome) {
  const LauncherWord launch{.rank = 0, .ranks = 4, .host = "n1", .nodes = "n[1-3]"};
  EXPECT_EQ(describe_missing(launch, {{0, "n1.cluster"}, {1, "n1.cluster"}, {3, "n3"}}),
            "of 4 ranks 2 has not come; ranks 0-1 on n1.cluster, 3 on n3 are here; nobody has come from n2");
  EXPECT_EQ(describe_missing(launch, {}), "of 4 ranks not all have come; this is rank 0 on n1");
  EXPECT_NE(describe_missing(launch, {{0, "n1"}, {1, "n1"}, {2, "n2"}, {3, "n3"}}).find("MPI does not connect them"), std::string::npos);
}

/// Waits in vain for other ranks, in a process of its own; `folder` is where it shows itself.
pid_t wait_in_vain(const std::string& run_folder) {
  const pid_t child = fork();
  if (child != 0) return child;
  const StartWatch watch({.timeout_seconds = 0.1, .say_seconds = 0.1, .run_folder = run_folder});
  while (true) pause();
}

TEST(Start, NothingIsWrittenThroughWhatAStrangerHasMade) {
  namespace fs = test::fs;
  const struct {
    const char* what;
    void (*plant)(const fs::path& folder, const fs::path& victim);
    bool root_only;
  } cases[] = {
      {"a link under a file's name",
       [](auto& folder, auto& victim) {
         fs::create_directory(folder);
         fs::permissions(folder, fs::perms::all);
         fs::create_symlink(victim, folder / "rank-0.new");
       },
       false},
      {"a link to a folder", [](auto& folder, auto& victim) { fs::create_directory_symlink(victim.parent_path(), folder); }, false},
      {"a file", [](auto& folder, auto& victim) { fs::create_hard_link(victim, folder); }, false},
      {"a folder of another user",
       [](auto& folder, auto& victim) {
         fs::create_directory(folder);
         fs::create_symlink(victim, folder / "rank-0.new");
         ASSERT_EQ(chown(folder.c_str(), 12345, 12345), 0);
       },
       true},
  };
  struct Trial {
    const char* what;
    test::Scratch runs, elsewhere;
    pid_t child = 0;
  };
  std::vector<std::unique_ptr<Trial>> trials;
  for (const auto& one : cases) {
    if (one.root_only && geteuid() != 0) continue;
    Trial& trial = *trials.emplace_back(std::make_unique<Trial>());
    trial.what = one.what;
    test::spill(trial.elsewhere / "rank-0.new", "precious");
    const std::string digest = hash_text(trial.runs / "run").hex();
    one.plant(trial.runs / (".tessera-start-" + digest.substr(0, 16)), trial.elsewhere / "rank-0.new");
    trial.child = wait_in_vain(trial.runs / "run");  // side by side: each waits a little for others' last words
    ASSERT_GT(trial.child, 0);
  }
  for (const auto& trial : trials) {
    int status = 0;
    EXPECT_EQ(waitpid(trial->child, &status, 0), trial->child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ExitCode::lost)) << trial->what;
    EXPECT_EQ(test::slurp(trial->elsewhere / "rank-0.new"), "precious") << trial->what;
    EXPECT_EQ(std::distance(fs::directory_iterator(trial->elsewhere.path()), {}), 1) << trial->what;
  }
}

/// Until a message or the end comes.
std::vector<Message> next(Link& link, bool& open) {
  std::vector<Message> messages;
  open = true;
  while (messages.empty() && open) {
    pollfd watched{link.socket(), POLLIN, 0};
    poll(&watched, 1, 1000);
    open = link.receive(messages);
  }
  return messages;
}

TEST(Link, WhoKnowsTheSecretIsHeardAndNobodyElse) {
  LinkListener listener(true);
  std::string reason, forged = listener.offer(), wrong;
  forged[forged.find('\n') + 1] ^= 1;
  Link stranger, one, two;
  std::thread others([&] {
    stranger = connect_link(forged, 1, 5, wrong);
    one = connect_link(listener.offer(), 1, 20, reason);
    two = connect_link(listener.offer(), 2, 20, reason);
  });
  std::vector<Link> links = listener.accept_all(std::vector{1, 2}, 30);
  others.join();
  EXPECT_LT(stranger.socket(), 0);
  EXPECT_NE(wrong, "");
  ASSERT_GE(one.socket(), 0) << reason;
  ASSERT_GE(two.socket(), 0) << reason;
  ASSERT_EQ(links.size(), 2u);

  const std::string large(200000, 'x');
  bool open = true;
  two.send(MessageKind::note, large);
  two.send(MessageKind::bye);
  std::vector<Message> got;
  while (got.size() < 2 && open) {
    two.flush();
    for (Message& m : next(links[1], open)) got.push_back(std::move(m));
  }
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].text, large);
  EXPECT_EQ(got[1].kind, MessageKind::bye);
  one.close();
  EXPECT_TRUE(next(links[0], open).empty());
  EXPECT_FALSE(open);
}

TEST(Link, SaysWhyThereIsNone) {
  std::string reason, offer;
  {
    LinkListener listener(true);
    offer = listener.offer();
  }
  EXPECT_LT(connect_link(offer, 1, 2, reason).socket(), 0);
  EXPECT_NE(reason.find("127.0.0.1: Connection refused"), std::string::npos) << reason;
}

}  // namespace
}  // namespace tessera::failure_test
