// Checkpoint write and read against the disk's own rate, measured right before and after each with the same sync policy: shared disks drift
// and give bursts, so a best of each would compare a burst with none.
//   checkpoint_benchmark [FOLDER] [MiB] [ROUNDS]
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/types.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/format.hpp"

namespace {

using namespace tessera;
namespace fs = std::filesystem;
constexpr std::size_t piece = 4 << 20;

struct Aligned {
  explicit Aligned(std::size_t bytes) : data(static_cast<char*>(std::aligned_alloc(4096, bytes))), bytes(bytes) {
    std::uint64_t x = 88172645463325252ull;
    for (std::size_t i = 0; i + 8 <= bytes; i += 8) {  // no zeros: disks and file systems cheat on them
      x ^= x << 13, x ^= x >> 7, x ^= x << 17;
      auto v = x & 0x3fffffff3fffffffull;  // finite floats
      std::copy_n(reinterpret_cast<char*>(&v), 8, data + i);
    }
  }
  ~Aligned() { std::free(data); }
  char* data;
  std::size_t bytes;
};

void require_system(bool ok, const char* what) {
  if (!ok) fail(ExitCode::storage, "benchmark: {} failed", what);
}

/// Past the page cache where the file system can do that.
int open_direct(const std::string& path, int flags) {
  int f = ::open(path.c_str(), flags | O_DIRECT, 0666);
  if (f < 0) f = ::open(path.c_str(), flags, 0666);
  require_system(f >= 0, "opening");
  return f;
}

double raw_write(const std::string& path, const Aligned& source, std::size_t total) {
  int f = open_direct(path, O_WRONLY | O_CREAT | O_TRUNC);
  double start = now_seconds();
  for (std::size_t at = 0; at < total; at += piece) {
    auto from = source.data + at % source.bytes;
    require_system(::pwrite(f, from, piece, static_cast<off_t>(at)) == static_cast<ssize_t>(piece), "write");
  }
  require_system(::fsync(f) == 0, "sync");
  ::close(f);
  return static_cast<double>(total) / (now_seconds() - start);
}

void forget(const std::string& path) {
  int f = ::open(path.c_str(), O_RDONLY);
  require_system(f >= 0 && ::fsync(f) == 0 && ::posix_fadvise(f, 0, 0, POSIX_FADV_DONTNEED) == 0, "dropping the page cache");
  ::close(f);
}

double raw_read(const std::string& path, Aligned& target, std::size_t total) {
  forget(path);
  int f = open_direct(path, O_RDONLY);
  ::posix_fadvise(f, 0, 0, POSIX_FADV_SEQUENTIAL);
  double start = now_seconds();
  for (std::size_t at = 0; at < total; at += piece)
    require_system(::pread(f, target.data + at % target.bytes, piece, static_cast<off_t>(at)) == static_cast<ssize_t>(piece), "read");
  ::close(f);
  return static_cast<double>(total) / (now_seconds() - start);
}

/// Something that moves the same bytes as a plain loop, each time between two runs of the loop: the rate of shared disks drifts and comes
/// in bursts, so only neighbours are compared.
struct Compared {
  const char* what;
  std::function<double()> disk;   ///< bytes a second of the loop
  std::function<void()> prepare;  ///< not timed
  std::function<void()> work;
  std::vector<double> rates = {}, shares = {};

  void round(double bytes) {
    const double before = disk();
    prepare();
    const double start = now_seconds();
    work();
    const double seconds = now_seconds() - start, after = disk();
    rates.push_back(bytes / seconds);
    shares.push_back(seconds > 0 ? (bytes / before + bytes / after) / 2 / seconds : 0);
  }
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// A layout, values for it and files in a folder.
class Bench {
 public:
  Bench(std::string folder, const io::CheckpointLayout& layout, const Aligned& source, Aligned& target)
      : folder_(std::move(folder)),
        root_(folder_ + "/checkpoints"),
        raw_(folder_ + "/raw"),
        layout_(layout),
        source_(source),
        target_(target) {
    for (auto& u : layout.units) total_ += static_cast<std::size_t>(u.elements) * 4 * layout.groups.size();
    for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g)
      for (int u = 0; u < static_cast<int>(layout.units.size()); ++u)
        slices_.push_back({g, u, std::span(reinterpret_cast<const float*>(source.data), static_cast<std::size_t>(unit(u).elements))});
  }

  double bytes() const { return static_cast<double>(total_); }
  std::vector<Compared> compared() {
    const auto write = [this] { return raw_write(raw_, source_, total_); };
    const auto read = [this] { return raw_read(raw_, target_, total_); };
    const auto nothing = [] {};
    const auto cold = [this] { forget(root_ + "/latest/" + io::shard_file(0)); };
    const auto fresh = [this] {
      fs::remove_all(root_);
      io::begin_checkpoint(root_, 1);
    };
    return {{"write_shard (hashed, synced)", write, fresh, [this] { io::write_shard(root_, 1, layout_, 0, slices_); }},
            {"whole save (index, commit)", write, nothing, [this] { save(); }},
            {"read_unit, verified", read, cold, [this] { read_units(); }},
            {"read in chunks, across 4 pieces", read, cold, [this] { read_rows(io::hash_block); }},
            {"read at once, across 4 pieces", read, cold, [this] { read_rows(target_.bytes / 4); }},
            {"verify", read, cold, [this] { io::CheckpointReader(root_ + "/latest").verify({}); }}};
  }

 private:
  const io::CheckpointUnit& unit(int u) const { return layout_.units[static_cast<std::size_t>(u)]; }

  void save() {
    io::begin_checkpoint(root_, 1);
    io::write_shard(root_, 1, layout_, 0, slices_);
    io::write_index(root_, layout_, {1, 0, 0, "", "", ""});
    io::commit_checkpoint(root_, 1, {.newest = 1});
  }
  void read_units() {
    const io::CheckpointReader reader(root_ + "/latest");
    for (auto& g : layout_.groups)
      for (int u = 0; u < static_cast<int>(layout_.units.size()); ++u)
        reader.read_unit(g, u, 0, {reinterpret_cast<float*>(target_.data), static_cast<std::size_t>(unit(u).elements)});
  }
  /// All of the tensor in its natural order, `at_once` elements a call.
  void read_rows(std::size_t at_once) {
    const io::CheckpointReader reader(root_ + "/latest");
    const io::CheckpointTensor& tensor = *reader.find("w");
    const auto n = static_cast<std::size_t>(tensor.shape.elements());
    for (auto& g : layout_.groups)
      for (std::size_t at = 0; at < n; at += at_once)
        reader.read(g, tensor, static_cast<std::int64_t>(at), {reinterpret_cast<float*>(target_.data), std::min(at_once, n - at)});
  }

  std::string folder_, root_, raw_;
  const io::CheckpointLayout& layout_;
  const Aligned& source_;
  Aligned& target_;
  std::size_t total_ = 0;
  std::vector<io::ShardSlice> slices_;
};

}  // namespace

int main(int argc, char** argv) try {
  const std::string folder = (argc > 1 ? std::string(argv[1]) : fs::temp_directory_path().string()) + "/tessera-checkpoint-benchmark";
  const std::int64_t mib = argc > 2 ? std::atoll(argv[2]) : 384;
  const int rounds = argc > 3 ? std::max(1, std::atoi(argv[3])) : 9;
  fs::create_directories(folder);
  io::CheckpointLayout layout;
  layout.groups = {"master", "adam_m", "adam_v"};
  auto elements = std::max<std::int64_t>(round_up(mib * (1 << 20) / 4 / 12, 1 << 20), 1 << 20);  // whole pieces
  // One matrix, a quarter of its columns in each unit: as units they are read whole, as a matrix row by row.
  std::vector<io::CheckpointPiece> columns;
  for (int u = 0; u < 4; ++u) {
    layout.units.push_back({fmt::format("columns.{}", u), elements});
    columns.push_back({u, 0, {{0, u * 1024}, {elements / 1024, 1024}}});
  }
  layout.tensors.push_back({"w", {elements / 1024, 4096}, std::move(columns)});
  Aligned source(static_cast<std::size_t>(elements) * 4), target(static_cast<std::size_t>(elements) * 4);
  Bench bench(folder, layout, source, target);
  std::vector<Compared> compared = bench.compared();
  for (int round = 0; round < rounds; ++round)
    for (Compared& c : compared) c.round(bench.bytes());
  fs::remove_all(folder);
  fmt::print(
      "checkpoint of {} (3 groups, 4 units, 1 shard), medians of {} rounds, file cache dropped before reads; shares of a plain loop (write "
      "and "
      "sync, or read, of 4 MiB at a time past the page cache) beside it\n",
      human_bytes(bench.bytes()), rounds);
  for (const Compared& c : compared)
    fmt::print("  {:<34} {:6.2f} GB/s  {:4.0f} % of the disk ({:.0f} to {:.0f})\n", c.what, median(c.rates) / 1e9, 100 * median(c.shares),
               100 * std::ranges::min(c.shares), 100 * std::ranges::max(c.shares));
  return 0;
} catch (const tessera::Error& e) {
  fmt::print(stderr, "{}\n", e.what());
  return static_cast<int>(e.code);
}
