#include "report/preflight/measure_exchange.hpp"

#include <algorithm>
#include <memory>
#include <numeric>

#include "base/clock.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "report/preflight/rings.hpp"
#include "topology/communicators/make_communicator.hpp"
#include "topology/node.hpp"
#include "train/engine/device.hpp"

namespace tessera {
namespace {

constexpr int shares = 2 * most_ring_rounds + 2;  ///< of the time: rounds inside nodes and across them, and two kinds of all ranks

class ExchangeBench {
 public:
  ExchangeBench(const Bench& bench, double seconds)
      : bench_(bench), world_(bench.world()), gpu_(bench.backend() == kernels::Backend::cuda), slice_(seconds / shares) {
    memory_ = Arena(gpu_ ? Tier::device : Tier::shared, gpu_ ? std::size_t{64} << 20 : std::size_t{4} << 20, "tessera.preflight.exchange");
    context_.backend = bench.backend();
    kernels::fill_zero(context_, memory_.data(), memory_.bytes());  // sums of zeros stay what they are
    wait_for_device(bench.backend());
    if (!gpu_) node_ = std::make_unique<Node>(world_), node_->register_arena(memory_);
  }
  void close() {
    if (node_) node_->unregister_arena(memory_);
  }

  using Call = std::function<void(Communicator&)>;
  /// Bytes/s of a call of the group's ranks, and 0 where this rank is in none. Collective over the world: other groups do the same.
  double rate(const std::vector<int>& members, double bytes, const Call& call) const {
    std::unique_ptr<Communicator> communicator;
    double first = 0;
    if (!members.empty()) {
      communicator =
          make_communicator(world_, group_of_ranks(members),
                            {.lane = "preflight", .node = node_.get(), .path = gpu_ ? CommunicatorPath::nccl : CommunicatorPath::fastest});
      for (int i = 0; i < 2; ++i) first = seconds_of(*communicator, call);  // the first has what is done once
    }
    const int calls = agreed_calls(first);
    world_.barrier();
    if (!communicator) return 0;
    std::vector<double> all;
    for (int i = 0; i < calls; ++i) all.push_back(seconds_of(*communicator, call));
    std::ranges::sort(all);
    const std::size_t half = (all.size() + 1) / 2;
    return bytes * static_cast<double>(half) / std::accumulate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(half), 0.0);
  }

  /// The faster of the meetings with both neighbours of a ring.
  double rate_in_ring(const std::vector<int>& ring) const {
    double best = 0;
    const std::vector<int> partners = partners_in_ring(ring, world_.rank());
    for (const int partner : partners) {
      std::vector<int> pair;
      if (partner >= 0) pair = {std::min(partner, world_.rank()), std::max(partner, world_.rank())};
      best = std::max(best, rate(pair, 1.5 * static_cast<double>(memory_.bytes()), [&](Communicator& c) { gather(c), reduce(c); }));
    }
    return best;
  }

  void gather(Communicator& c) const {
    const std::int64_t block = elements() / c.size();
    c.all_gather(data(), data() + c.rank() * block, block, DType::f32, 0, context_);
  }
  void reduce(Communicator& c) const { c.all_reduce(data(), elements(), DType::f32, Reduction::sum, context_); }
  double bytes() const { return static_cast<double>(memory_.bytes()); }

 private:
  float* data() const { return reinterpret_cast<float*>(memory_.data()); }
  std::int64_t elements() const { return static_cast<std::int64_t>(memory_.bytes() / sizeof(float)); }
  Group group_of_ranks(const std::vector<int>& members) const {
    const auto here = std::ranges::find(members, world_.rank());
    return {
        .axes = data_axes, .rank = static_cast<int>(here - members.begin()), .size = static_cast<int>(members.size()), .world = members};
  }
  double seconds_of(Communicator& communicator, const Call& call) const {
    const double begin = now_seconds();
    call(communicator);
    wait_for_device(bench_.backend());
    return now_seconds() - begin;
  }
  /// All groups call as often, by the slowest of them: pairs must agree, and nobody may be done while others still take a link.
  int agreed_calls(double first) const {
    double slowest = 1e-6;
    for (const std::string& text : world_.gather_text(fmt::format("{}", first))) slowest = std::max(slowest, std::stod(text));
    return std::clamp(static_cast<int>(slice_ / slowest), 3, 1000);
  }

  const Bench& bench_;
  const World& world_;
  bool gpu_;
  double slice_;
  Arena memory_;
  kernels::Context context_;
  std::unique_ptr<Node> node_;
};

}  // namespace

void measure_exchange(const Bench& bench, double seconds, const std::function<void(const std::string&)>& progress, RankMeasures& measures) {
  const World& world = bench.world();
  if (world.ranks() == 1) return;
  std::vector<int> nodes, everyone(static_cast<std::size_t>(world.ranks()));
  for (const std::string& node : world.gather_text(std::to_string(world.place().node))) nodes.push_back(std::stoi(node));
  std::iota(everyone.begin(), everyone.end(), 0);
  const RingsOfRank rings = rings_of(nodes, world.rank());
  ExchangeBench exchange(bench, seconds);
  const auto add = [&](const char* name, RankMeasureKind kind, double rate) {
    if (rate > 0) measures.measures.push_back({.name = name, .kind = kind, .rate = rate});
  };
  progress("exchange in pairs");
  add("exchange in a node", RankMeasureKind::exchange, exchange.rate_in_ring(rings.inside));
  if (world.place().nodes > 1) add("exchange between nodes", RankMeasureKind::exchange, exchange.rate_in_ring(rings.across));
  progress("collectives of all ranks");
  add("all-gather of all ranks", RankMeasureKind::all,
      exchange.rate(everyone, exchange.bytes(), [&](Communicator& c) { exchange.gather(c); }));
  add("all-reduce of all ranks", RankMeasureKind::all,
      exchange.rate(everyone, exchange.bytes(), [&](Communicator& c) { exchange.reduce(c); }));
  exchange.close();
}

}  // namespace tessera
