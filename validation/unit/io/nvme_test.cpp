// The disk tier: what is read is what was written, whichever way the bytes go.
#include <atomic>
#include <deque>
#include <thread>
#include <unordered_set>

#include "base/types.hpp"
#include "io/nvme/preflight.hpp"
#include "spill_support.hpp"

namespace tessera::io::test::nvme_test {
using namespace tessera::test;
namespace {

struct Way {
  const char* name;
  const char* faults = "";
  int folders = 1;
  bool encrypt = false;
  int threads = 1;
  bool registered = false;  // the caller's memory too
  const char* how = "io_uring, depth 4, O_DIRECT, registered buffers";
};

std::ostream& operator<<(std::ostream& out, const Way& w) { return out << w.name; }

const Way ways[] = {
    {.name = "ring"},
    {.name = "ring_of_three_workers", .threads = 3},
    {.name = "registered", .registered = true},
    {.name = "unregistered",
     .faults = "ENOMEM:register:",
     .how = "io_uring, depth 4, O_DIRECT: 320.00 KiB of buffers could not be registered"},
    {.name = "threads", .faults = "EPERM:ring:", .how = "threads, depth 4, O_DIRECT: io_uring is forbidden here (EPERM"},
    {.name = "no_ring_in_kernel", .faults = "ENOSYS:ring:", .how = "threads, depth 4, O_DIRECT: this kernel has no io_uring (ENOSYS)"},
    {.name = "page_cache", .faults = "EINVAL:direct:", .how = "io_uring, depth 4, page cache, registered buffers: "},
    {.name = "page_cache_threads", .faults = "EINVAL:direct:;EPERM:ring:", .how = "threads, depth 4, page cache: "},
    {.name = "kernel_without_dioalign", .faults = "ENOSYS:dioalign:"},
    {.name = "named_then_unlinked", .faults = "EOPNOTSUPP:nameless:"},
    {.name = "named", .faults = "EOPNOTSUPP:nameless:;EBUSY:unlink:", .how = "registered buffers: "},
    {.name = "not_reserved", .faults = "EOPNOTSUPP:reserve:", .how = "cannot reserve space"},
    {.name = "striped", .folders = 3, .how = "O_DIRECT, registered buffers, over 3 folders"},
    {.name = "encrypted", .encrypt = true, .how = "registered buffers, AES-256-XTS"},
    {.name = "encrypted_page_cache", .faults = "EINVAL:direct:", .encrypt = true, .how = "page cache, registered buffers, AES-256-XTS: "},
    {.name = "encrypted_striped_threads",
     .faults = "EPERM:ring:",
     .folders = 2,
     .encrypt = true,
     .how = "threads, depth 4, O_DIRECT, AES-256-XTS, over 2 folders: "},
    {.name = "short_transfers", .faults = "SHORT:read:;SHORT:write:"},
    {.name = "short_transfers_of_threads", .faults = "EPERM:ring:;SHORT:read:;SHORT:write:", .how = "threads, "},
};

class EveryWay : public testing::TestWithParam<Way> {
 protected:
  SpillOptions options(std::int64_t bytes) {
    auto o = spill_options(dir.path(), bytes);
    o.folders.clear();
    for (int i = 0; i < GetParam().folders; ++i) fs::create_directory(o.folders.emplace_back(dir / std::to_string(i)));
    o.encrypt = GetParam().encrypt, o.threads = GetParam().threads;
    return o;
  }
  void SetUp() override { fault_disk(GetParam().faults); }
  void TearDown() override { fault_disk(""); }
  Scratch dir;
};

INSTANTIATE_TEST_SUITE_P(Spill, EveryWay, testing::ValuesIn(ways), [](const auto& info) { return std::string(info.param.name); });

/// What is not to be had here without any fault is not looked for.
std::string missing_here(const std::string& how) {
  Scratch dir;
  const auto here = SpillFile(spill_options(dir.path())).how();
  for (const char* part : {"io_uring, ", "O_DIRECT", "registered buffers"})
    if (has(how, part) && !has(here, part)) return part;
  return "";
}

TEST_P(EveryWay, SaysHow) {
  fault_disk("");
  if (const auto part = missing_here(GetParam().how); !part.empty()) GTEST_SKIP() << part << " is not to be had here";
  fault_disk(GetParam().faults);
  EXPECT_HAS(SpillFile(options(block)).how(), GetParam().how);
}

TEST_P(EveryWay, RandomRangesMatchAModel) {
  constexpr std::int64_t bytes = 10 * block + 12345;
  auto o = options(bytes);
  Noise memory(1 << 20);
  if (GetParam().registered) o.memory = {memory.all()};
  SpillFile file(o);
  std::vector<std::byte> model(static_cast<std::size_t>(bytes));
  struct Flight {
    SpillFile::Ticket ticket;
    std::span<std::byte> memory;
    std::vector<std::byte> expected;  // of a read
  };
  std::deque<Flight> flights;
  std::mt19937_64 random(7);
  const auto land = [&] {
    Flight f = std::move(flights.front());
    flights.pop_front();
    file.wait(f.ticket);
    if (!f.expected.empty()) {
      ASSERT_EQ(std::memcmp(f.memory.data(), f.expected.data(), f.expected.size()), 0);
    }
  };
  constexpr int at_once = 5;
  const auto room = memory.all().size() / at_once;
  for (int i = 0; i < 300; ++i) {
    if (flights.size() == at_once) land();
    // Half of the ranges as a schedule has them, half anywhere.
    const bool neat = random() % 2 == 0;
    auto offset = static_cast<std::int64_t>(random() % bytes);
    if (neat) offset = offset / block * block;
    auto n = std::min<std::int64_t>(static_cast<std::int64_t>(random() % (room - 4096)), bytes - offset);
    if (neat) n = std::min<std::int64_t>(round_up(std::min<std::int64_t>(n, 2 * block) + 1, 4096), bytes - offset);
    auto at = static_cast<std::size_t>(i % at_once) * room / 4096 * 4096;
    if (!neat) at += random() % 4000;
    auto part = memory.part(at, static_cast<std::size_t>(n));
    auto there = model.begin() + offset;
    const std::string unit = "range " + std::to_string(i);
    if (random() % 2 == 0) {
      for (auto& b : part) b = static_cast<std::byte>(random() >> 56);
      std::copy(part.begin(), part.end(), there);
      flights.push_back({file.write(offset, part, unit), part, {}});
    } else {
      flights.push_back({file.read(offset, part, unit), part, {there, there + n}});
    }
  }
  while (!flights.empty()) land();
  std::vector<std::byte> all(model.size());
  file.wait(file.read(0, all, "all"));
  EXPECT_EQ(all, model);
  file.close();
}

TEST_P(EveryWay, NobodyElseReadsIt) {
  SpillFile file(options(4 * block));
  const auto open = open_files_below(dir.path());
  ASSERT_EQ(open.size(), static_cast<std::size_t>(GetParam().folders));
  for (auto& path : open) {
    struct stat s;
    ASSERT_EQ(::stat(path.c_str(), &s), 0);
    EXPECT_EQ(s.st_mode & 07777, 0600u);
    EXPECT_EQ(s.st_nlink, std::string(GetParam().name) == "named" ? 1u : 0u);
    EXPECT_GE(s.st_size, 4 * block / GetParam().folders);
  }
}

TEST_P(EveryWay, NothingStays) {
  {
    SpillFile file(options(4 * block));
    file.wait(file.write(0, Noise(4 * block).all(), "a unit"));
    file.close();
    SpillFile dropped(options(block));
  }
  fault_disk("");
  { SpillFile next(options(block)); }
  for (auto& entry : fs::recursive_directory_iterator(dir.path())) EXPECT_TRUE(entry.is_directory()) << entry.path();
}

TEST(Spill, HoldsZerosAtFirst) {
  Scratch dir;
  SpillFile file(spill_options(dir.path()));
  Noise noise(8 * block), none(8 * block);
  std::memset(none.all().data(), 0, none.all().size());
  file.wait(file.read(0, noise.all(), "all"));
  EXPECT_TRUE(noise == none);
  file.wait(file.read(5, {}, "nothing"));
}

TEST(Spill, ATransferWaitsForOneWhoseBlocksItShares) {
  Scratch dir;
  SpillFile file(spill_options(dir.path()));
  Noise first(2 * block, 1), second(2 * block, 2), found(2 * block, 3);
  for (int i = 0; i < 50; ++i) {  // nothing is waited for before the end
    file.write(0, first.all(), "first");
    file.write(0, second.all(), "second");
    auto read = file.read(0, found.all(), "read");
    file.wait(read);
    EXPECT_TRUE(found == second);
  }
  file.drain();
  EXPECT_TRUE(file.under_way().empty());
}

TEST(Spill, ServesManyThreads) {
  Scratch dir;
  auto o = spill_options(dir.path(), 16 * block);
  o.threads = 2;
  SpillFile file(o);
  std::vector<std::thread> callers;
  std::atomic<int> same = 0;
  for (unsigned c = 0; c < 4; ++c)
    callers.emplace_back([&, c] {
      Noise from(4 * block + 100, c), to(4 * block + 100, 99);
      for (int i = 0; i < 20; ++i) {
        const std::int64_t at = static_cast<std::int64_t>(c) * 4 * block - (c > 0 ? 100 : 0);  // neighbours share a block at their edges
        const auto n = static_cast<std::size_t>(c > 0 ? 4 * block : 4 * block - 100);
        auto ticket = file.write(at, from.part(0, n), "thread " + std::to_string(c));
        (void)file.under_way();
        while (!file.ended(ticket)) std::this_thread::yield();
        file.wait(ticket);
        file.wait(file.read(at, to.part(0, n), "thread " + std::to_string(c)));
        same += std::memcmp(from.all().data(), to.all().data(), n) == 0;
      }
    });
  for (auto& c : callers) c.join();
  EXPECT_EQ(same, 80);
}

TEST(Spill, EncryptedFilesShowNothingOfTheirContent) {
  // Zeros, a text, weights, one block as another: whatever lies there twice in memory must not do so in the file, nor any run of 64 bytes
  // of it.
  for (bool encrypt : {true, false}) {
    Scratch dir;
    auto o = spill_options(dir.path());
    o.encrypt = encrypt;
    SpillFile file(o);
    Noise noise(8 * block);
    std::memset(noise.part(0, block).data(), 0, block);
    for (std::int64_t i = 0; i < block; ++i)
      noise.all()[static_cast<std::size_t>(block + i)] = static_cast<std::byte>("layers.0.attention.wq "[i % 22]);
    std::memcpy(noise.part(3 * block, block).data(), noise.part(2 * block, block).data(), block);
    file.wait(file.write(0, noise.all(), "weights"));
    file.wait(file.write(100, noise.part(100, block), "a part, read and written again"));
    const auto open = open_files_below(dir.path());
    ASSERT_EQ(open.size(), 1u);
    const std::string content = slurp(open[0]);
    ASSERT_GE(content.size(), noise.all().size());
    // A run of 64 bytes of the memory, wherever it begins, holds one of 32 that begins at a multiple of 32.
    const std::string_view plain(reinterpret_cast<const char*>(noise.all().data()), noise.all().size());
    std::unordered_set<std::string_view> runs;
    for (std::size_t at = 0; at < plain.size(); at += 32) runs.insert(plain.substr(at, 32));
    bool found = false;
    for (std::size_t at = 0; at + 32 <= content.size() && !found; ++at) found = runs.count(std::string_view(content).substr(at, 32)) > 0;
    EXPECT_EQ(found, !encrypt);
    if (encrypt) {
      EXPECT_NE(content.substr(0, 4096), content.substr(4096, 4096));
      EXPECT_NE(content.substr(2 * block, block), content.substr(3 * block, block));
    }
  }
}

TEST(Spill, WipeOverwritesWhatWasWritten) {
  for (bool wipe : {true, false}) {
    Scratch dir;
    auto o = spill_options(dir.path());
    o.wipe = wipe;
    SpillFile file(o);
    file.wait(file.write(block, Noise(3 * block + 5).all(), "weights"));
    const int d = ::open(open_files_below(dir.path()).at(0).c_str(), O_RDONLY | O_CLOEXEC);  // holds the file when it is gone
    file.close();
    std::string content(8 * block, '?');
    EXPECT_EQ(::pread(d, content.data(), content.size(), 0), static_cast<ssize_t>(content.size()));
    ::close(d);
    EXPECT_EQ(content == std::string(8 * block, '\0'), wipe);
  }
}

TEST(Spill, SaysWhatMemoryItTakes) {
  Scratch dir;
  auto o = spill_options(dir.path(), 1000 * block);
  EXPECT_EQ(spill_memory_bytes(o), 5 * block + 1000 * 24);
}

TEST(Spill, RefusesWhatIsOutside) {
  Scratch dir;
  SpillFile file(spill_options(dir.path()));
  Noise noise(block);
  EXPECT_HAS(error_of(ExitCode::internal, [&] { file.read(7 * block + 1, noise.all(), "layers.9"); }), "layers.9");
}

TEST(SpillPreflight, FindsRoomRateAndRights) {
  Scratch dir;
  auto o = spill_options(dir.path());
  o.folders.push_back(dir.path());  // the same file system twice needs the room of both
  auto p = preflight_spill(o, 2 << 20);
  EXPECT_TRUE(p.problems.empty()) << p.problems.at(0);
  ASSERT_EQ(p.folders.size(), 2u);
  for (auto& f : p.folders) {
    EXPECT_TRUE(f.usable && f.nameless);
    EXPECT_EQ(f.needed_bytes, 8 * block);
    EXPECT_GT(f.free_bytes, f.needed_bytes);
    EXPECT_GT(f.write_rate, 0);
    EXPECT_GT(f.read_rate, 0);
  }
  EXPECT_HAS(p.how, ", depth 4, ");
  EXPECT_EQ(p.registered_bytes, 5 * block);
}

TEST(SpillPreflight, NamesWhatIsMissing) {
  Scratch dir;
  auto o = spill_options(dir.path(), std::int64_t{1} << 55);
  o.folders.push_back(dir / "none");
  const auto p = preflight_spill(o, 0);
  ASSERT_EQ(p.problems.size(), 2u);
  EXPECT_HAS(p.problems[0], "is free, but");
  EXPECT_HAS(p.problems[0], "name a folder on a larger file system");
  EXPECT_HAS(p.problems[1], dir / "none");
  EXPECT_HAS(p.problems[1], "Check that the folder exists");
  EXPECT_TRUE(p.folders[0].usable);
  EXPECT_FALSE(p.folders[1].usable);
}

TEST(SpillPreflight, NotesWhatIsSlowerThanItCouldBe) {
  Scratch dir;
  Faults faults("EPERM:ring:;EINVAL:direct:;EOPNOTSUPP:nameless:;EBUSY:unlink:");
  const auto p = preflight_spill(spill_options(dir.path()), 0);
  ASSERT_GE(p.notes.size(), 3u);
  EXPECT_HAS(p.notes[0], "refuses O_DIRECT");
  EXPECT_HAS(p.notes[1], "keeps the names of open files");
  EXPECT_HAS(p.notes[2], "io_uring is forbidden here (EPERM");
  EXPECT_EQ(p.folders[0].write_rate, 0);
  EXPECT_TRUE(p.problems.empty());
}

}  // namespace
}  // namespace tessera::io::test::nvme_test
