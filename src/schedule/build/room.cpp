#include "schedule/build/room.hpp"

#include <algorithm>
#include <array>
#include <map>

namespace tessera {
namespace {

// Of eight H100 SXM in a node: 742 TFLOP/s of products beside 22.5 GB/s of a block and 46 GB/s of each GPU's part of the network, and 132
// multiprocessors (inputs/machines/h100_8.toml). Of other GPUs the guess is off by a product or two.
constexpr double flops_a_byte_of_block = 32000, flops_a_byte_of_adapter = 16000, multiprocessors = 132;
constexpr int gpus_of_node = 8;

/// A section played by bytes and FLOPs; time is in FLOPs of products.
class Guess {
 public:
  Guess(const Schedule& schedule, const BuildRequest& request, int blocks) : schedule_(schedule), request_(request), blocks_(blocks) {}

  /// How long the section is. `beside`: by task, how many of a pass's calls begin beside a gather or a reduction, up to the last product.
  double play(const Section& section, std::vector<std::size_t>& beside) {
    now_ = 0, ends_ = {}, written_.clear(), read_.clear();
    beside.assign(section.tasks.size(), 0);
    for (std::size_t t = 0; t < section.tasks.size(); ++t) {
      const Task& task = section.tasks[t];
      if (const auto* collective = std::get_if<Collective>(&task.op))
        begin(task, *collective);
      else if (task.lane == Lane::compute)
        beside[t] = compute(task);
    }
    return std::max(now_, travel_end());
  }

 private:
  void begin(const Task& task, const Collective& op) {
    const Members members = members_of(op.axes);
    if (members.all == 1) return;
    const int blocks = travels_beside_products(task.lane) ? blocks_ : most_collective_blocks;
    double a_byte = flops_a_byte_of_block / blocks;
    if (members.here < members.all) a_byte = std::max(a_byte, flops_a_byte_of_adapter / members.here);
    const double bytes = task.bytes_moved > 0 ? task.bytes_moved : 2.0 * static_cast<double>(task.uses.front().bytes);
    double& end = ends_[static_cast<std::size_t>(task.lane)];
    end = std::max(end, now_) + bytes * a_byte;
    for (const Use& use : task.uses) (use.access == Access::read ? read_ : written_)[use.buffer] = end;
  }

  /// Of a group, and those on this rank's node, through whose adapters its bytes come.
  struct Members {
    int all = 1, here = 1;
  };
  Members members_of(Axes axes) {
    auto [known, fresh] = members_.try_emplace(axes);
    if (fresh) {
      const Group group = request_.group(axes);
      const auto node = [](int rank) { return rank / gpus_of_node; };
      const int mine = node(group.world[static_cast<std::size_t>(group.rank)]);
      known->second = {.all = group.size, .here = static_cast<int>(std::ranges::count(group.world, mine, node))};
    }
    return known->second;
  }

  /// Waits for what the task touches, and makes its calls.
  std::size_t compute(const Task& task) {
    const auto wait_for = [&](const std::map<int, double>& ends, int buffer) {
      if (const auto end = ends.find(buffer); end != ends.end()) now_ = std::max(now_, end->second);
    };
    for (const Use& use : task.uses) {
      if (use.bytes == 0) continue;
      wait_for(written_, use.buffer);
      if (use.access != Access::read) wait_for(read_, use.buffer);
    }
    const auto* run = std::get_if<RunPass>(&task.op);
    if (!run) return 0;
    const SegmentPass& pass = schedule_.passes[static_cast<std::size_t>(run->pass)];
    std::size_t last = 0;
    for (std::size_t c = 0; c < pass.calls.size(); ++c) {
      const Call& call = call_of(schedule_.segment_of(pass), pass.calls[c]);
      const bool leaves = std::holds_alternative<ProductWork>(call.work) && now_ < travel_end();
      if (leaves) last = c + 1;
      now_ += call.flops * (leaves ? multiprocessors / (multiprocessors - blocks_) : 1);
    }
    return last;
  }

  double travel_end() const {
    return std::max(ends_[static_cast<std::size_t>(Lane::gather)], ends_[static_cast<std::size_t>(Lane::reduce)]);
  }

  const Schedule& schedule_;
  const BuildRequest& request_;
  int blocks_;
  std::map<Axes, Members> members_;
  double now_ = 0;
  std::array<double, lane_count> ends_{};  ///< of the last collective of each lane
  std::map<int, double> written_, read_;   ///< ends of collectives, by the buffers that they touch
};

/// Of a training step; 0 where there is none.
double step_length(const Schedule& schedule, const BuildRequest& request, int blocks) {
  Guess guess(schedule, request, blocks);
  std::vector<std::size_t> beside;
  double length = 0;
  for (const Program::Phase& phase : schedule.program(ProgramKind::train).phases)
    length += static_cast<double>(phase.repeat) * guess.play(schedule.sections[static_cast<std::size_t>(phase.section)], beside);
  return length;
}

}  // namespace

void leave_room(Schedule& schedule, const BuildRequest& request) {
  if (schedule.shape.backend != kernels::Backend::cuda) return;
  schedule.collective_blocks = most_collective_blocks;
  if (request.deck.run.reproducible) return;
  if (request.stage.count == 1 &&
      step_length(schedule, request, fewest_collective_blocks) < step_length(schedule, request, most_collective_blocks))
    schedule.collective_blocks = fewest_collective_blocks;
  Guess guess(schedule, request, schedule.collective_blocks);
  std::vector<std::size_t> beside;
  for (Section& section : schedule.sections) {
    guess.play(section, beside);
    for (std::size_t t = 0; t < beside.size(); ++t)
      if (auto* run = std::get_if<RunPass>(&section.tasks[t].op)) run->beside = beside[t];
  }
}

void leave_no_room(Schedule& schedule) {
  if (schedule.collective_blocks > 0) schedule.collective_blocks = most_collective_blocks;
  for (Section& section : schedule.sections)
    for (Task& task : section.tasks)
      if (auto* run = std::get_if<RunPass>(&task.op)) run->beside = 0;
}

}  // namespace tessera
