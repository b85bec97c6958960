// Checkpoint write and read against the disk's own rate, measured in the same run with the same sync policy. Rounds are interleaved because
// the rate of shared disks drifts; the best of each is compared.
//   checkpoint_benchmark [FOLDER] [MiB]
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
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

double raw_write(const std::string& path, const Aligned& source, std::size_t total, int flags) {
  int f = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | flags, 0666);
  if (f < 0) return 0;  // no O_DIRECT here
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

double raw_read(const std::string& path, Aligned& target, std::size_t total, int flags) {
  forget(path);
  int f = ::open(path.c_str(), O_RDONLY | flags);
  if (f < 0) return 0;
  ::posix_fadvise(f, 0, 0, POSIX_FADV_SEQUENTIAL);
  double start = now_seconds();
  for (std::size_t at = 0; at < total; at += piece)
    require_system(::pread(f, target.data + at % target.bytes, piece, static_cast<off_t>(at)) == static_cast<ssize_t>(piece), "read");
  ::close(f);
  return static_cast<double>(total) / (now_seconds() - start);
}

struct Best {
  double raw_write = 0, raw_read = 0, write = 0, save = 0, read = 0, stream = 0, rows = 0, verify = 0;  // bytes a second
};

void keep_best(double& best, double value) { best = std::max(best, value); }

/// Reads all of the tensor in its natural order, `at_once` elements a call.
double across_columns(const std::string& root, const std::string& shard, const io::CheckpointLayout& layout, Aligned& target,
                      std::size_t at_once) {
  forget(shard);
  const double start = now_seconds();
  const io::CheckpointReader reader(root + "/latest");
  const io::CheckpointTensor& tensor = *reader.find("w");
  const auto n = static_cast<std::size_t>(tensor.shape.elements());
  for (auto& g : layout.groups)
    for (std::size_t at = 0; at < n; at += at_once)
      reader.read(g, tensor, static_cast<std::int64_t>(at), {reinterpret_cast<float*>(target.data), std::min(at_once, n - at)});
  return static_cast<double>(n * 4 * layout.groups.size()) / (now_seconds() - start);
}

void one_round(const std::string& folder, const io::CheckpointLayout& layout, const Aligned& source, Aligned& target, Best& best) {
  std::size_t total = 0;
  for (auto& u : layout.units) total += static_cast<std::size_t>(u.elements) * 4 * layout.groups.size();
  const std::string raw = folder + "/raw", root = folder + "/checkpoints";
  keep_best(best.raw_write, raw_write(raw, source, total, 0));
  keep_best(best.raw_write, raw_write(raw, source, total, O_DIRECT));
  fs::remove_all(root);
  std::vector<io::ShardSlice> slices;
  std::size_t at = 0;
  for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g)
    for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
      auto n = static_cast<std::size_t>(layout.units[static_cast<std::size_t>(u)].elements);
      slices.push_back({g, u, std::span(reinterpret_cast<const float*>(source.data + at % source.bytes), n)});
      at += n * 4;
    }
  double start = now_seconds();
  io::begin_checkpoint(root, 1);
  double writing = now_seconds();
  io::write_shard(root, 1, layout, 0, slices);
  keep_best(best.write, static_cast<double>(total) / (now_seconds() - writing));
  io::write_index(root, layout, {1, 0, 0, "", "", ""});
  io::commit_checkpoint(root, 1, {.newest = 1});
  keep_best(best.save, static_cast<double>(total) / (now_seconds() - start));

  keep_best(best.raw_read, raw_read(raw, target, total, 0));
  keep_best(best.raw_read, raw_read(raw, target, total, O_DIRECT));
  fs::remove(raw);
  const std::string shard = root + "/latest/" + io::shard_file(0);
  forget(shard);
  start = now_seconds();
  {
    io::CheckpointReader reader(root + "/latest");
    for (auto& g : layout.groups)
      for (int u = 0; u < static_cast<int>(layout.units.size()); ++u)
        reader.read_unit(
            g, u, 0, {reinterpret_cast<float*>(target.data), static_cast<std::size_t>(layout.units[static_cast<std::size_t>(u)].elements)});
  }
  keep_best(best.read, static_cast<double>(total) / (now_seconds() - start));
  keep_best(best.stream, across_columns(root, shard, layout, target, io::hash_block));
  keep_best(best.rows, across_columns(root, shard, layout, target, target.bytes / 4));
  forget(shard);
  start = now_seconds();
  io::CheckpointReader(root + "/latest").verify({});
  keep_best(best.verify, static_cast<double>(total) / (now_seconds() - start));
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string folder = (argc > 1 ? std::string(argv[1]) : fs::temp_directory_path().string()) + "/tessera-checkpoint-benchmark";
  const std::int64_t mib = argc > 2 ? std::atoll(argv[2]) : 384;
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
  Best best;
  for (int round = 0; round < 3; ++round) one_round(folder, layout, source, target, best);
  fs::remove_all(folder);
  fmt::print("checkpoint of {} (3 groups, 4 units, 1 shard), best of 3, file cache dropped before reads\n",
             human_bytes(static_cast<double>(elements) * 48));
  auto line = [](const char* what, double rate, double limit) {
    fmt::print("  {:<34} {:6.2f} GB/s  {:5.1f} % of the disk\n", what, rate / 1e9, 100 * rate / limit);
  };
  line("disk: write + fsync", best.raw_write, best.raw_write);
  line("write_shard (hashed, synced)", best.write, best.raw_write);
  line("whole save (index, commit)", best.save, best.raw_write);
  line("disk: cold read", best.raw_read, best.raw_read);
  line("read_unit, verified", best.read, best.raw_read);
  line("read in chunks, across 4 pieces", best.stream, best.raw_read);
  line("read at once, across 4 pieces", best.rows, best.raw_read);
  line("verify", best.verify, best.raw_read);
  return 0;
} catch (const tessera::Error& e) {
  fmt::print(stderr, "{}\n", e.what());
  return static_cast<int>(e.code);
}
