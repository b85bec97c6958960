#include "schedule/simulate/task_seconds.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <set>
#include <utility>

#include "base/check.hpp"
#include "schedule/build/room.hpp"
#include "schedule/plan/memory_passes.hpp"

namespace tessera {
namespace {

[[noreturn]] void lacking(const MachineProfile& machine, const std::string& section, const std::string& why) {
  fail(ExitCode::usage, "the machine profile \"{}\" has no [{}], and {}: add it, or measure one with `tessera report --measure`",
       machine.name, section, why);
}

/// Steps of a tree over so many.
double levels(int members) { return std::ceil(std::log2(static_cast<double>(members))); }

class Estimator {
 public:
  Estimator(const Schedule& schedule, const MachineProfile& machine, const Placement& placement)
      : schedule_(schedule),
        machine_(machine),
        placement_(placement),
        rates_(machine.rates(schedule.shape.dtype)),
        sharing_(std::min(placement.ranks_per_node, placement.ranks())),
        slower_((1 + machine.jitter * slowest_of(placement.ranks())) / machine.share_reached()),
        throttled_(slower_ * machine.power.slowdown()) {
    if (!rates_.given()) lacking(machine, fmt::format("gemm.{}", name_of(schedule.shape.dtype)), "the deck computes in that type");
    for (const SegmentPass& pass : schedule.passes) passes_.push_back(seconds_of(pass));
  }

  double operator()(const Task& task) {
    task_ = &task;
    return machine_.task_overhead + (touches_disk() ? disk() : std::visit(*this, task.op));
  }

  double operator()(const RunPass& op) { return passes_[static_cast<std::size_t>(op.pass)] + cleared_tables(op) + room_of(op); }
  /// Seconds by which the pass is longer because its products leave multiprocessors to collectives.
  double room_of(const RunPass& op) const {
    double seconds = 0;
    for (std::size_t c = 0; c < op.beside; ++c)
      if (const Call& call = call_at(op, c); std::holds_alternative<ProductWork>(call.work))
        seconds += product_seconds(call) * (room() - 1);
    return seconds;
  }
  /// Its calls as parts, those beside each other with the same loss as one. None where the profile does not tell products from others.
  std::vector<LossPart> losses_of(const RunPass& op) const {
    std::vector<LossPart> parts;
    if (schedule_.shape.backend != kernels::Backend::cuda || machine_.sharing.second_wave <= 0) return parts;
    double all = 0;
    for (std::size_t c = 0; c < schedule_.passes[static_cast<std::size_t>(op.pass)].calls.size(); ++c) {
      const Call& call = call_at(op, c);
      const bool is_product = std::holds_alternative<ProductWork>(call.work), leaves = is_product && c < op.beside;
      // The profile's share of others is that of most blocks: fewer take fewer multiprocessors and less bandwidth.
      const double others = machine_.contention * schedule_.collective_blocks / most_collective_blocks,
                   products = leaves ? 0 : machine_.sharing.second_wave, loss = is_product ? products : others,
                   seconds = seconds_of(call) + (leaves ? product_seconds(call) * (room() - 1) : 0);
      if (parts.empty() || parts.back().loss != loss) parts.push_back({.share = 0, .loss = loss});
      parts.back().share += seconds, all += seconds;
    }
    for (LossPart& part : parts) part.share /= all;
    return parts;
  }
  double operator()(const Collective& op) {
    auto [group, fresh] = groups_.try_emplace(op.axes);
    if (fresh) group->second = group_of(placement_.mesh, op.axes, 0);
    if (group->second.size == 1) return 0;
    const double bytes = task_->bytes_moved > 0 ? task_->bytes_moved : 2.0 * static_cast<double>(task_->uses.front().bytes);
    const double by_links = collective_seconds(op.kind, bytes, group->second, placement_.ranks_per_node, machine_, op.by);
    const bool by_blocks = schedule_.collective_blocks > 0 && machine_.sharing.block > 0 && travels_beside_products(task_->lane);
    return by_blocks ? std::max(by_links, bytes / (schedule_.collective_blocks * machine_.sharing.block)) : by_links;
  }
  /// As a piece that two ranks gather. Where they stand is that of the first rank and its neighbour along the pipeline.
  double operator()(const Transfer& op) {
    const int stride = placement_.ranks() / placement_.mesh.size(Axis::pp);
    const Group pair{.axes = axes({Axis::pp}), .rank = 0, .size = 2, .world = {0, stride}};
    const double bytes = static_cast<double>(op.count) * static_cast<double>(size_of(op.dtype));
    return collective_seconds(CollectiveKind::all_gather, bytes, pair, placement_.ranks_per_node, machine_);
  }
  /// As forward products of the same rows and columns: their FLOPs are most of a step's, and it has two of the narrow side alone.
  double operator()(const Orthogonalize& op) {
    double seconds = 0;
    for (const Orthogonalize::Matrix& m : op.matrices) {
      const auto narrow = std::min(m.rows, m.columns);
      seconds += throttled_ * kernels::newton_schulz_flops(m.rows, m.columns) *
                 seconds_per_flop(ProductWork{
                     .product = products::Product::forward, .tokens = std::max(m.rows, m.columns), .outputs = narrow, .inputs = narrow});
    }
    return seconds;
  }
  /// Between tiers, or inside one.
  double operator()(const Copy&) {
    if (const auto pass = memory_pass_of(*task_, schedule_)) return over_memory(*pass);
    const double bytes = static_cast<double>(task_->uses.front().bytes);
    if (machine_.transfer.up <= 0) lacking(machine_, "transfer", fmt::format("`{}` copies between a device and its host", task_->name));
    return machine_.transfer.latency + bytes / (tier_of(0) == Tier::device ? machine_.transfer.up : machine_.transfer.down);
  }
  template <class Other>
  double operator()(const Other&) {
    return over_memory(memory_pass_of(*task_, schedule_).value());
  }

 private:
  static std::size_t index(const Use& use) { return static_cast<std::size_t>(use.buffer); }
  Tier tier_of(std::size_t use) const { return schedule_.buffers[index(task_->uses[use])].tier; }

  double kernel_seconds(std::string_view kernel, double bytes) const {
    auto grid = rates_.kernels.find(kernel);
    if (grid == rates_.kernels.end()) grid = rates_.kernels.find("stream");
    return std::max(machine_.least_call, slower_ * bytes * grid->second.seconds_per_unit({bytes}));
  }

  /// Products of codes go at rates of their own on a GPU. The host widens codes, and multiplies in the compute type.
  const ComputeRates& rates_of(const ProductWork& product) const {
    if (product.quantised_bytes == 0 || schedule_.shape.backend != kernels::Backend::cuda) return rates_;
    if (!machine_.fp8.given())
      fail(ExitCode::usage,
           "the machine profile \"{}\" has no [gemm.fp8], but precision.fp8 multiplies at its rates. Add peak, tokens, outputs, inputs, "
           "forward, input_gradient and weight_gradient, as inputs/machines/h100_8.toml has them, or set precision.fp8=none. GPUs below "
           "compute capability 8.9 have no such products",
           machine_.name);
    return machine_.fp8;
  }

  /// By kernels, or on a lane of the host by the cores that the ranks of a node share.
  double over_memory(const MemoryPass& pass) const {
    if (!info_of(task_->lane).on_host) return kernel_seconds(pass.kernel, pass.bytes);
    if (machine_.host.adamw <= 0) lacking(machine_, "host", fmt::format("`{}` runs on the host's cores", task_->name));
    return pass.bytes * sharing_ / (pass.kernel == "adamw" ? machine_.host.adamw : machine_.host.stream);
  }

  bool touches_disk() const {
    return std::ranges::any_of(task_->uses, [&](const Use& use) { return schedule_.buffers[index(use)].tier == Tier::nvme; });
  }
  /// Whatever the op: bytes of that tier are read or written, at the rate of disks that the ranks of a node share.
  double disk() const {
    if (machine_.disk.read <= 0) lacking(machine_, "disk", fmt::format("`{}` moves bytes to or from disks", task_->name));
    double seconds = machine_.disk.latency;
    for (const Use& use : task_->uses)
      if (schedule_.buffers[index(use)].tier == Tier::nvme)
        seconds += static_cast<double>(use.bytes) * sharing_ / (use.access == Access::read ? machine_.disk.read : machine_.disk.write);
    return seconds;
  }

  double seconds_of(const SegmentPass& pass) const {
    const Segment& segment = schedule_.segment_of(pass);
    double seconds = 0;
    for (const CallRef& ref : pass.calls) seconds += seconds_of(call_of(segment, ref));
    return seconds;
  }

  double seconds_of(const Call& call) const {
    if (const auto* memory = std::get_if<MemoryWork>(&call.work)) return kernel_seconds(call.kernel(), memory->bytes);
    const auto* product = std::get_if<ProductWork>(&call.work);
    const double quantised = product && product->quantised_bytes > 0 ? kernel_seconds("stream", product->quantised_bytes) : 0;
    return quantised + product_seconds(call);
  }
  /// Of a product or of attention.
  double product_seconds(const Call& call) const {
    return std::max(machine_.least_call, throttled_ * call.flops * seconds_per_flop(call.work));
  }
  const Call& call_at(const RunPass& op, std::size_t c) const {
    const SegmentPass& pass = schedule_.passes[static_cast<std::size_t>(op.pass)];
    return call_of(schedule_.segment_of(pass), pass.calls[c]);
  }
  /// How much longer a product takes that leaves room.
  double room() const {
    const auto all = static_cast<double>(machine_.sharing.multiprocessors);
    return all > 0 ? all / std::max(all - schedule_.collective_blocks, all / 2) : 1;
  }

  double seconds_per_flop(const Work& work) const {
    const auto number = [](std::int64_t n) { return static_cast<double>(n); };
    if (const auto* attention = std::get_if<AttentionWork>(&work))
      return (attention->backward ? rates_.attention_backward : rates_.attention_forward)
          .seconds_per_unit({number(attention->tokens), number(attention->head_dim)});
    const auto& p = std::get<ProductWork>(work);
    const ComputeRates& rates = rates_of(p);
    const RateGrid* grids[] = {&rates.forward, &rates.input_gradient, &rates.weight_gradient};
    return grids[static_cast<std::size_t>(p.product)]->seconds_per_unit({number(p.tokens), number(p.outputs), number(p.inputs)});
  }

  /// The gradient of an embedding starts its sum with zeros, a table of them.
  double cleared_tables(const RunPass& op) const {
    const SegmentPass& pass = schedule_.passes[static_cast<std::size_t>(op.pass)];
    const Segment& segment = schedule_.segment_of(pass);
    double seconds = 0;
    for (const CallRef& ref : pass.calls) {
      const Call& call = call_of(segment, ref);
      if (call.kernel() != "embedding_backward") continue;
      for (std::size_t o = 0; o < pass.operands.size(); ++o)
        if (segment.at(pass.operands[o].value).kind == ValueKind::weight_gradient && task_->uses[o].access == Access::write)
          seconds += kernel_seconds("stream", static_cast<double>(task_->uses[o].bytes));
    }
    return seconds;
  }

  const Schedule& schedule_;
  const MachineProfile& machine_;
  const Placement& placement_;
  const ComputeRates& rates_;
  int sharing_;       ///< ranks of a node
  double slower_;     ///< times as long as by the profile's rates: what programs reach of them, and the slowest of all ranks
  double throttled_;  ///< the same of products and attention, which a limit of power slows down
  std::vector<double> passes_;
  std::map<Axes, Group> groups_;
  const Task* task_ = nullptr;
};

/// Of the members on a node those whose block comes from another one, where each sends it `by` members further.
int most_from_elsewhere(const Group& group, int ranks_per_node, int by) {
  std::map<int, int> entering;  // by node
  int most = 0;
  for (int i = 0; i < group.size; ++i) {
    const auto node_of = [&](int member) { return group.world[static_cast<std::size_t>(member)] / ranks_per_node; };
    const int here = node_of(i), from = node_of((i + group.size - by) % group.size);
    if (from != here) most = std::max(most, ++entering[here]);
  }
  return most;
}

}  // namespace

double slowest_of(int ranks) {
  // The integral of 1 - F(x)^n - (1 - F(x))^n over x > 0, which is the mean of the largest of n.
  constexpr double step = 0.02, end = 8;
  double mean = 0;
  for (double x = step / 2; x < end; x += step) {
    const double below = 0.5 * std::erfc(-x / std::numbers::sqrt2);
    mean += step * (1 - std::pow(below, ranks) - std::pow(1 - below, ranks));
  }
  return mean;
}

double collective_seconds(CollectiveKind kind, double bytes, const Group& group, int ranks_per_node, const MachineProfile& machine,
                          int by) {
  std::set<int> places;
  for (const int rank : group.world) places.insert(rank / ranks_per_node);
  const int nodes = static_cast<int>(places.size()), members = static_cast<int>(ceil_div(group.size, nodes));
  const bool tree = kind == CollectiveKind::all_reduce, exchanges = kind == CollectiveKind::all_to_all,
             rotates = kind == CollectiveKind::rotate;
  double latency = 0, seconds = 0;
  if (members > 1) {
    if (machine.node.all_gather <= 0) lacking(machine, "collectives.node", "ranks of a node meet");
    latency += machine.node.latency * (tree ? 2 * levels(members) : rotates ? 1 : members - 1);
    // Of an all_to_all a rank receives as much as of an all_gather of its blocks, and only what comes from its node is this link's. What
    // rotates is received as a piece of an all_gather is.
    const double rates[] = {machine.node.all_gather, machine.node.reduce_scatter, machine.node.all_reduce, machine.node.all_gather,
                            machine.node.all_gather};
    const double inside = exchanges ? bytes * (members - 1) / (group.size - 1) : bytes;
    seconds = inside / rates[static_cast<std::size_t>(kind)];
  }
  if (nodes > 1) {
    if (machine.network.bandwidth <= 0) lacking(machine, "collectives.network", fmt::format("{} ranks are on {} nodes", group.size, nodes));
    latency += machine.network.latency * (tree ? 2 * levels(nodes) : rotates ? 1 : nodes - 1);
    // Of all that a rank ends with, what lies on other nodes enters each node once for each group that has members there; of an all_to_all
    // once for each rank, since no two get the same. What rotates enters a node with those of its members that get it from another.
    const double all = bytes * group.size / (group.size - 1),
                 entering = rotates ? bytes * most_from_elsewhere(group, ranks_per_node, by) : all * (nodes - 1) / nodes;
    const double groups = exchanges ? ranks_per_node : static_cast<double>(ranks_per_node) / members;
    seconds = std::max(seconds, entering * groups / machine.network.bandwidth);
  }
  return latency + seconds;
}

Contention contention_of(const Schedule& schedule, const MachineProfile& machine, const Placement& placement) {
  const Estimator estimator(schedule, machine, placement);
  Contention found;
  for (const Section& section : schedule.sections) {
    auto& losses = found.losses.emplace_back();
    double& room = found.room.emplace_back();
    for (const Task& task : section.tasks) {
      losses.emplace_back();
      if (const auto* run = std::get_if<RunPass>(&task.op)) losses.back() = estimator.losses_of(*run), room += estimator.room_of(*run);
    }
  }
  return found;
}

std::vector<std::vector<double>> task_seconds(const Schedule& schedule, const MachineProfile& machine, const Placement& placement) {
  Estimator estimator(schedule, machine, placement);
  std::vector<std::vector<double>> seconds;
  for (const Section& section : schedule.sections) {
    auto& of_section = seconds.emplace_back();
    bool launched = false;
    for (const Task& task : section.tasks) {
      of_section.push_back(estimator(task));
      if (task.lane == Lane::compute && !std::exchange(launched, true)) of_section.back() += machine.launch;
    }
  }
  return seconds;
}

}  // namespace tessera
