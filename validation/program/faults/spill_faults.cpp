// The disk tier when disks, limits and rights fail: each fault is named with file, offset and unit, nothing unverified comes back and
// nothing stays.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <csignal>
#include <cstddef>
#include <thread>

#include "io/nvme/preflight.hpp"
#include "validation/unit/io/spill_support.hpp"

namespace tessera::io::test {
using namespace tessera::test;
namespace {

/// Through io_uring and through threads.
class SpillFaults : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { rules(""); }
  void TearDown() override { fault_disk(""); }
  void rules(const std::string& more) { fault_disk((std::string(GetParam()) == "threads" ? "EPERM:ring:;" + more : more).c_str()); }
  /// A spill with a unit in its blocks 2 to 4.
  SpillFile filled(const SpillOptions& o) {
    SpillFile file(o);
    file.wait(file.write(2 * block, noise.all(), "layers.3.adam_m"));
    return file;
  }
  std::string error_of_read(SpillFile& file) {
    Noise to(3 * block);
    return error_of(ExitCode::storage, [&] { file.wait(file.read(2 * block, to.all(), "layers.3.adam_m")); });
  }
  std::string error_of_write(SpillFile& file) {
    return error_of(ExitCode::storage, [&] { file.wait(file.write(2 * block, noise.all(), "layers.3.adam_m")); });
  }
  void expect_named(const std::string& text, std::int64_t at) {
    EXPECT_HAS(text, dir.path() + "/(spill file: a test)");
    EXPECT_HAS(text, "byte " + std::to_string(at));
    EXPECT_HAS(text, "layers.3.adam_m from its byte " + std::to_string(at - 2 * block));
  }
  Scratch dir;
  Noise noise{3 * block};
};

INSTANTIATE_TEST_SUITE_P(By, SpillFaults, testing::Values("ring", "threads"), [](const auto& info) { return std::string(info.param); });

TEST_P(SpillFaults, AFlippedByteIsFound) {
  for (bool encrypt : {false, true}) {
    auto o = spill_options(dir.path());
    o.encrypt = encrypt;
    auto file = filled(o);
    flip_byte(open_files_below(dir.path()).at(0), 3 * block + 777);
    const auto text = error_of_read(file);
    expect_named(text, 3 * block);
    EXPECT_HAS(text, "are not what was written there (XXH3 ");
    EXPECT_HAS(text, "Resume from the last checkpoint");
    // A part of another block is still good; of this one no byte is given, and a write of a part does not make it good.
    Noise to(block);
    file.wait(file.read(2 * block + 10, to.part(0, 100), "layers.3.adam_m"));
    EXPECT_EQ(std::memcmp(to.all().data(), noise.all().data() + 10, 100), 0);
    EXPECT_HAS(error_of(ExitCode::storage, [&] { file.wait(file.read(3 * block + 10, to.part(0, 5), "a part")); }),
               "a part from its byte 0");
    EXPECT_HAS(error_of(ExitCode::storage, [&] { file.wait(file.write(3 * block + 10, to.part(0, 5), "a part")); }),
               "are not what was written");
    EXPECT_HAS(error_of_read(file), "the data to be written there was lost");
    // Written anew it is good again.
    file.wait(file.write(2 * block, noise.all(), "layers.3.adam_m"));
    Noise again(3 * block, 2);
    file.wait(file.read(2 * block, again.all(), "layers.3.adam_m"));
    EXPECT_TRUE(again == noise);
  }
}

TEST_P(SpillFaults, AFileThatWasCutIsFound) {
  auto file = filled(spill_options(dir.path()));
  ASSERT_EQ(::truncate(open_files_below(dir.path()).at(0).c_str(), 3 * block + 4096), 0);
  const auto text = error_of_read(file);
  EXPECT_HAS(text, dir.path() + "/(spill file: a test): it ends at byte " + std::to_string(3 * block + 4096));
  EXPECT_HAS(text, "layers.3.adam_m from its byte " + std::to_string(block));
}

TEST_P(SpillFaults, ErrorsOfTheDiskAreNamed) {
  auto o = spill_options(dir.path());
  o.queue_depth = 1;  // so that calls have an order
  auto file = filled(o);
  rules("EIO:read:" + dir.path() + ":2:1");
  auto text = error_of_read(file);
  expect_named(text, 3 * block);
  EXPECT_HAS(text, "cannot read 64.00 KiB at byte");
  EXPECT_HAS(text, "Input/output error. Check the file system");
  Noise to(3 * block, 2);
  file.wait(file.read(2 * block, to.all(), "layers.3.adam_m"));  // the second time it succeeds
  EXPECT_TRUE(to == noise);
  for (const char* error : {"EIO", "ENOSPC"}) {
    rules(std::string(error) + ":write:" + dir.path() + ":3:1");
    text = error_of_write(file);
    expect_named(text, 4 * block);
    EXPECT_HAS(text, "cannot write 64.00 KiB at byte");
    EXPECT_HAS(text, std::string(error) == "EIO" ? "Input/output error" : "No space left on device. The disk is full (");
    // What should be there now is not: the older bytes must not come back in its place.
    rules("");
    EXPECT_HAS(error_of_read(file), "the data to be written there was lost. " + dir.path());
    file.wait(file.write(2 * block, noise.all(), "layers.3.adam_m"));
    file.wait(file.read(2 * block, to.all(), "layers.3.adam_m"));
  }
  // A write of less than was lost does not mend the rest.
  rules("EIO:write:" + dir.path());
  EXPECT_HAS(error_of(ExitCode::storage, [&] { file.wait(file.write(0, noise.part(0, block), "layers.0")); }), "layers.0 from its byte 0");
  rules("");
  EXPECT_HAS(error_of(ExitCode::storage, [&] { file.wait(file.write(0, noise.part(0, 100), "layers.0")); }), "cannot be written in part");
  file.wait(file.write(0, noise.part(0, block), "layers.0"));
  file.wait(file.read(0, to.part(0, block), "layers.0"));
  rules("EIO:sync:" + dir.path());
  file.close();  // nothing is wiped, so nothing has to reach the disk
}

TEST_P(SpillFaults, InterruptionsAndRefusalsAreTriedAgain) {
  for (const char* fault : {"EINTR", "EAGAIN", "SHORT"}) {
    rules(std::string(fault) + ":read:" + dir.path() + ":1:5;" + fault + ":write:" + dir.path() + ":1:5");
    auto file = filled(spill_options(dir.path()));
    Noise to(3 * block, 2);
    file.wait(file.read(2 * block, to.all(), "layers.3.adam_m"));
    EXPECT_TRUE(to == noise) << fault;
  }
  rules("EAGAIN:write:" + dir.path());
  SpillFile file(spill_options(dir.path()));
  EXPECT_HAS(error_of_write(file), "Resource temporarily unavailable");  // but not for ever
}

TEST_P(SpillFaults, AStalledDiskIsNamed) {
  auto file = filled(spill_options(dir.path()));
  EXPECT_TRUE(file.under_way().empty());
  rules("STALL:read:" + dir.path());
  Noise to(block, 2), other(block, 3);
  auto read = file.read(3 * block, to.all(), "layers.3.adam_m");
  while (file.under_way().empty()) std::this_thread::yield();
  const auto stalled = file.under_way().at(0);
  EXPECT_EQ(stalled.offset, 3 * block);
  EXPECT_EQ(stalled.unit, "layers.3.adam_m");
  EXPECT_EQ(stalled.bytes, block);
  EXPECT_FALSE(stalled.write);
  EXPECT_GT(stalled.seconds, 0);
  EXPECT_HAS(stalled.text(), "reads 64.00 KiB at byte 196608 of " + dir.path() + "/(spill file: a test) for layers.3.adam_m, for ");
  file.wait(file.write(7 * block, other.all(), "another unit"));  // what does not need it goes on
  EXPECT_FALSE(file.ended(read));
  rules("");
  file.wait(read);
  EXPECT_EQ(std::memcmp(to.all().data(), noise.all().data() + block, block), 0);
}

TEST_P(SpillFaults, AFullDiskIsFoundBeforeAnythingIsWritten) {
  rules("ENOSPC:reserve:" + dir.path());
  const auto text = error_of(ExitCode::storage, [&] { SpillFile file(spill_options(dir.path())); });
  EXPECT_HAS(text, "cannot reserve 512.00 KiB: No space left on device. The disk is full (");
  EXPECT_TRUE(open_files_below(dir.path()).empty());
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

/// A name space of mounts for this process alone; who is not root becomes root of a name space of users.
bool own_mounts() {
  const auto user = std::to_string(::geteuid()), group = std::to_string(::getegid());
  if (::geteuid() == 0) return ::unshare(CLONE_NEWNS) == 0;
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  spill("/proc/self/setgroups", "deny");
  spill("/proc/self/uid_map", "0 " + user + " 1");
  spill("/proc/self/gid_map", "0 " + group + " 1");
  return ::geteuid() == 0;
}

/// Mounts a file system of 1 MiB there.
bool mount_small(const std::string& folder) {
  return own_mounts() && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("none", folder.c_str(), "tmpfs", 0, "size=1m") == 0;
}

TEST_P(SpillFaults, ASmallFileSystemIsFull) {
  const auto texts = in_child([&]() -> std::string {
    if (!mount_small(dir.path())) return "no mount";
    auto o = spill_options(dir.path(), 64 * block);
    std::string all = preflight_spill(o, 0).problems.at(0) + "\n" + error_of(ExitCode::storage, [&] { SpillFile file(o); });
    rules("EOPNOTSUPP:reserve:");  // then it shows when it is written
    SpillFile file(o);
    Noise much(32 * block);
    return all + "\n" + error_of(ExitCode::storage, [&] { file.wait(file.write(0, much.all(), "layers.1")); });
  });
  if (texts == "no mount") GTEST_SKIP() << "this process may not mount anything";
  EXPECT_HAS(texts, "1.00 MiB is free, but 4.00 MiB is needed");
  EXPECT_HAS(texts, "cannot reserve 4.00 MiB: No space left on device");
  EXPECT_HAS(texts, "for layers.1 from its byte ");
  EXPECT_HAS(texts, "No space left on device. The disk is full (");
}

/// From here on this process may do less: as root it becomes nobody.
bool lose_rights() { return ::geteuid() != 0 || ::setresuid(65534, 65534, 65534) == 0; }

TEST_P(SpillFaults, AFolderThatMayNotBeWrittenIsNamed) {
  fs::permissions(dir.path(), fs::perms(0555));
  const auto text = in_child([&]() -> std::string {
    if (!lose_rights()) return "not nobody";
    return preflight_spill(spill_options(dir.path()), 0).problems.at(0) + "\n" +
           error_of(ExitCode::storage, [&] { SpillFile file(spill_options(dir.path())); });
  });
  fs::permissions(dir.path(), fs::perms(0755));
  if (text == "not nobody") GTEST_SKIP() << "this process may not become another user";
  const auto refusal = dir.path() + ": cannot make a spill file here: Permission denied. Check the permissions of the folder";
  EXPECT_EQ(text.find(refusal), 0u) << text;
  EXPECT_NE(text.rfind(refusal), 0u) << text;
}

std::string write_and_read(SpillFile& file) {
  Noise from(3 * block), to(3 * block, 2);
  file.wait(file.write(0, from.all(), "a unit"));
  file.wait(file.read(0, to.all(), "a unit"));
  return from == to ? file.how() : "other bytes came back";
}

TEST(SpillLimits, TooLittleMemoryToLock) {
  Scratch dir;
  fs::permissions(dir.path(), fs::perms(0777));
  const auto text = in_child([&]() -> std::string {
    const rlimit little{.rlim_cur = 128 << 10, .rlim_max = 128 << 10};
    if (::setrlimit(RLIMIT_MEMLOCK, &little) != 0 || !lose_rights()) return "no limit";
    auto o = spill_options(dir.path());
    const auto p = preflight_spill(o, 0);
    SpillFile file(o);
    return write_and_read(file) + "\n" + std::to_string(p.memlock_bytes) + "\n" + (p.notes.empty() ? "no note" : p.notes.back());
  });
  if (text == "no limit" || has(text, "EPERM") || has(text, "ENOSYS")) GTEST_SKIP() << text;
  if (has(text, "threads, ")) {  // the limit is the user's: another process has locked so much that not even a ring fits
    EXPECT_HAS(text, "io_uring found too little memory to lock (ENOMEM; ulimit -l is 128.00 KiB)");
  } else {
    EXPECT_HAS(text, "io_uring, depth 4, ");
    EXPECT_HAS(text, "320.00 KiB of buffers could not be registered (ulimit -l allows 128.00 KiB)");
  }
  EXPECT_HAS(text, "\n131072\n");
  EXPECT_HAS(text, "ulimit -l lets 128.00 KiB be locked, but 320.00 KiB of buffers would be registered");
}

TEST_P(SpillFaults, NoMoreThreads) {
  fs::permissions(dir.path(), fs::perms(0777));
  const auto text = in_child([&]() -> std::string {
    const rlimit few{.rlim_cur = 1, .rlim_max = 1};
    if (!lose_rights() || ::setrlimit(RLIMIT_NPROC, &few) != 0) return "not nobody";
    return error_of(ExitCode::environment, [&] { SpillFile file(spill_options(dir.path())); });
  });
  if (text == "not nobody") GTEST_SKIP() << "this process may not become another user";
  EXPECT_HAS(text, "threads of a disk tier could not be started (Resource temporarily unavailable). Raise the limits on threads");
}

/// The kernel answers these system calls with EPERM from now on.
bool forbid(std::initializer_list<int> calls) {
  std::vector<sock_filter> program = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (int call : calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{.len = static_cast<unsigned short>(program.size()), .filter = program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(SpillLimits, IoUringForbidden) {
  for (const auto& calls : {std::initializer_list<int>{SYS_io_uring_setup}, {SYS_io_uring_enter}}) {
    Scratch dir;
    const auto text = in_child([&]() -> std::string {
      if (!forbid(calls)) return "no seccomp";
      SpillFile file(spill_options(dir.path()));
      return write_and_read(file);
    });
    if (text == "no seccomp") GTEST_SKIP() << text;
    if (has(text, "ENOSYS")) GTEST_SKIP() << "this kernel has no io_uring";
    EXPECT_EQ(text.find("threads, depth 4, "), 0u) << text;
    EXPECT_HAS(text, ": io_uring is forbidden here (EPERM; by sysctl kernel.io_uring_disabled or by the container's seccomp profile)");
  }
}

/// Runs f in a child that ends by SIGKILL once f has returned.
void killed(const std::function<void()>& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    f();
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST_P(SpillFaults, NothingStaysAfterAKill) {
  killed([&] {
    static auto file = filled(spill_options(dir.path()));
    file.write(0, noise.all(), "under way");
  });
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST_P(SpillFaults, TheNextStartRemovesFilesThatHadToKeepTheirNames) {
  rules("EOPNOTSUPP:nameless:;EBUSY:unlink:" + dir.path());
  SpillFile alive(spill_options(dir.path()));
  EXPECT_HAS(alive.how(), "/.tessera-spill-");
  EXPECT_HAS(alive.how(),
             "keeps its name while it is open (Device or resource busy): it is removed at the end, and after a crash by the next start");
  const auto name = fs::directory_iterator(dir.path())->path();
  killed([&] { static auto file = filled(spill_options(dir.path())); });
  spill(dir / ".tessera-spill-of-mine.txt.not", "");  // nobody holds it either: the prefix is ours
  spill(dir / "checkpoint.h5", "not ours");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 4);
  // The kernel may hold the lock a little longer than the process lived, while it takes its ring apart.
  for (int removed = 0; removed < 2; std::this_thread::yield()) removed += remove_left_spill_files(dir.path());
  EXPECT_TRUE(fs::exists(name));
  EXPECT_TRUE(fs::exists(dir / "checkpoint.h5"));
  { SpillFile next(spill_options(dir.path())); }
  EXPECT_TRUE(fs::exists(name)) << "a living run's file was removed";
  alive.close();
  EXPECT_FALSE(fs::exists(name));
}

TEST(SpillLimits, WhereFilesCannotBeLockedTheUserIsTold) {
  Scratch dir;
  Faults faults("EOPNOTSUPP:nameless:;EBUSY:unlink:;ENOLCK:lock:");
  SpillFile file(spill_options(dir.path()));
  EXPECT_HAS(file.how(), "after a crash by you, because files cannot be locked there");
}

}  // namespace
}  // namespace tessera::io::test
