#include "report/measure_links.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/clock.hpp"
#include "io/nvme/spill_file.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "topology/communicators/make_communicator.hpp"
#include "topology/node.hpp"

namespace tessera {
namespace {

/// Collectives take other memory each time, as those of a step do, which is more than caches hold.
constexpr std::int64_t places = 8;

double levels(int members) {
  double n = 0;
  for (int reach = 1; reach < members; reach *= 2) ++n;
  return n;
}

/// Seconds of small and of large collectives of a group, by kind: all_gather, reduce_scatter, all_reduce.
struct CollectiveTimes {
  double small = 0;               ///< of a few numbers: latency alone
  std::array<double, 3> large{};  ///< of `bytes` that each rank takes in
  std::array<double, 3> bytes{};
};

/// A group's collectives on memory that peers may read where it lies, on the host.
class GroupBench {
 public:
  GroupBench(const Bench& bench, const Group& group, const Node* node, const Arena& arena)
      : bench_(bench), size_(group.size), place_bytes_(static_cast<std::int64_t>(arena.bytes()) / places), memory_(arena.data()) {
    const CommunicatorPath path = bench.backend() == kernels::Backend::cuda ? CommunicatorPath::nccl : CommunicatorPath::fastest;
    communicator_ = make_communicator(bench.world(), group, {.lane = "report", .node = node, .path = path});
  }

  /// With `bytes` that all ranks end with.
  CollectiveTimes measure(std::int64_t bytes) const {
    const std::int64_t block = bytes / static_cast<std::int64_t>(sizeof(float)) / size_, whole = block * size_;
    kernels::Context context;
    context.backend = bench_.backend();
    std::int64_t turn = 0;
    const auto seconds = [&](const auto& call) {
      return bench_.seconds([&] {
        auto* all = reinterpret_cast<float*>(memory_ + turn++ % places * place_bytes_);
        call(all, all + whole);
      });
    };
    CollectiveTimes t;
    t.small = seconds([&](float* all, float* mine) { communicator_->all_gather(all, mine, 16, DType::f32, 0, context); });
    t.large[0] = seconds([&](float* all, float* mine) { communicator_->all_gather(all, mine, block, DType::f32, 0, context); });
    t.large[1] = seconds([&](float* all, float* mine) { communicator_->reduce_scatter(mine, all, block, DType::f32, 0, false, context); });
    t.large[2] = seconds([&](float* all, float*) { communicator_->all_reduce(all, whole, DType::f32, Reduction::sum, context); });
    const double others = 4.0 * static_cast<double>(block) * (size_ - 1);
    t.bytes = {others, others, 2 * others};
    return t;
  }

 private:
  const Bench& bench_;
  int size_;
  std::int64_t place_bytes_;
  std::byte* memory_;
  std::unique_ptr<Communicator> communicator_;
};

Group ranks_of(const std::vector<int>& world, int rank) {
  const auto here = std::find(world.begin(), world.end(), rank);
  return {.axes = data_axes, .rank = static_cast<int>(here - world.begin()), .size = static_cast<int>(world.size()), .world = world};
}

}  // namespace

void measure_collectives(const Bench& bench, std::int64_t bytes, MachineProfile& profile) {
  const World& world = bench.world();
  if (world.ranks() == 1) return;
  const bool gpu = bench.backend() == kernels::Backend::cuda;
  // Ranks of this node, by their places.
  std::vector<int> here, everyone(static_cast<std::size_t>(world.ranks()));
  std::iota(everyone.begin(), everyone.end(), 0);
  const std::vector<std::string> nodes = world.gather_text(std::to_string(world.place().node));
  for (const int rank : everyone)
    if (nodes[static_cast<std::size_t>(rank)] == std::to_string(world.place().node)) here.push_back(rank);
  const std::int64_t place = round_up(2 * bytes + 4096, 4096);  // what all end with, and a rank's own block
  const Arena arena(gpu ? Tier::device : Tier::shared, static_cast<std::size_t>(places * place), "tessera.report.collectives");
  std::unique_ptr<Node> node;
  if (!gpu) node = std::make_unique<Node>(world), node->register_arena(arena);
  const int members = static_cast<int>(here.size());
  CollectiveTimes inside;
  if (members > 1) {
    inside = GroupBench(bench, ranks_of(here, world.rank()), node.get(), arena).measure(bytes);
    profile.node.latency = rounded(inside.small / (members - 1));
    const auto rate = [&](std::size_t kind, double steps) {
      return rounded(inside.bytes[kind] / std::max(inside.large[kind] - steps * profile.node.latency, 0.2 * inside.large[kind]));
    };
    profile.node.all_gather = rate(0, members - 1), profile.node.reduce_scatter = rate(1, members - 1);
    profile.node.all_reduce = rate(2, 2 * levels(members));
  }
  if (world.place().nodes > 1) {
    const CollectiveTimes across = GroupBench(bench, ranks_of(everyone, world.rank()), node.get(), arena).measure(bytes);
    const double nodes_there = world.place().nodes, ranks = world.ranks();
    profile.network.latency = rounded(std::max(0.0, across.small - inside.small) / (nodes_there - 1));
    const double entering = across.bytes[0] * ranks / (ranks - 1) * (nodes_there - 1) / nodes_there;
    profile.network.bandwidth =
        rounded(entering / std::max(across.large[0] - profile.network.latency * (nodes_there - 1), 0.2 * across.large[0]));
  }
  if (node) node->unregister_arena(arena);
}

void measure_transfer(Bench& bench, std::int64_t bytes, MachineProfile& profile) {
  const bool gpu = bench.backend() == kernels::Backend::cuda;
  const auto each = static_cast<std::size_t>(bytes);
  const Arena host(gpu ? Tier::pinned : Tier::host, places * each, "tessera.report.transfer");
  bench.release();
  const std::size_t device_places = bench.left() / 2 / each;
  auto* device = static_cast<std::byte*>(bench.take(each * device_places));
  const kernels::Context context = bench.context(0);
  std::size_t turn = 0;
  const auto seconds = [&](bool up, std::size_t moved) {
    return bench.seconds([&] {
      std::byte *above = device + turn % device_places * each, *below = host.data() + turn % places * each;
      ++turn;
      kernels::copy(context, up ? above : below, up ? below : above, moved);
    });
  };
  profile.transfer.latency = rounded(seconds(true, 64));
  const auto rate = [&](double time) {
    return rounded(static_cast<double>(bytes) / std::max(time - profile.transfer.latency, 0.2 * time));
  };
  profile.transfer.up = rate(seconds(true, each));
  profile.transfer.down = rate(seconds(false, each));
}

void measure_disks(const World& world, const std::vector<std::string>& folders, std::int64_t bytes, MachineProfile& profile) {
  if (folders.empty()) return;
  world.together([&] {
    if (world.rank() != 0) return;
    const Arena memory(Tier::host, static_cast<std::size_t>(bytes), "tessera.report.disk");
    // No zeros, of which some disks make nothing.
    for (std::int64_t i = 0; i < bytes; i += 8) {
      const std::uint64_t noise = static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15u ^ static_cast<std::uint64_t>(i) >> 7;
      std::memcpy(memory.data() + i, &noise, 8);
    }
    const std::span<std::byte> all(memory.data(), memory.bytes());
    io::SpillFile file({.folders = folders, .purpose = "tessera report", .bytes = bytes, .memory = {all}});
    const auto seconds = [&](bool write, std::span<std::byte> part) {
      const double begin = now_seconds();
      file.wait(write ? file.write(0, part, "a measurement") : file.read(0, part, "a measurement"));
      return now_seconds() - begin;
    };
    seconds(true, all);  // blocks of the file are given out
    profile.disk.write = rounded(static_cast<double>(bytes) / seconds(true, all));
    profile.disk.read = rounded(static_cast<double>(bytes) / seconds(false, all));
    profile.disk.latency = rounded(seconds(false, all.first(4096)));
  });
}

}  // namespace tessera
