#include "schedule/plan/cross_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>

#include "base/check.hpp"
#include "schedule/plan/order.hpp"

namespace tessera {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

/// A lane of a role on its way through a program.
class LaneWalk {
 public:
  LaneWalk(const Schedule& schedule, const OrderedProgram& program, std::size_t lane)
      : schedule_(&schedule), program_(&program), lane_(lane) {
    settle();
  }
  bool ended() const { return phase_ == program_->size(); }
  const Task& task() const { return tasks()[task_]; }
  std::int64_t micro() const { return phase().micro_of(repetition_).value_or(0); }
  bool in_micro_batches() const { return phase().micro.has_value(); }
  /// Whether the other lanes have come as far as this task waits for. `ends` are those of tasks that are done, by lane.
  bool ready(const std::array<std::vector<double>, lane_count>& ends) const {
    const Waits& waits = phase().waits_of(repetition_)[task_];
    for (std::size_t other = 0; other < lane_count; ++other)
      if (other != lane_ && waits[other] && std::ssize(ends[other]) < start_[other] + *waits[other]) return false;
    return true;
  }
  /// When the last of what a ready task waits for has ended.
  double begin(const std::array<std::vector<double>, lane_count>& ends) const {
    const Waits& waits = phase().waits_of(repetition_)[task_];
    double begin = ends[lane_].empty() ? 0 : ends[lane_].back();
    for (std::size_t other = 0; other < lane_count; ++other)
      if (other != lane_ && waits[other] && start_[other] + *waits[other] > 0)
        begin = std::max(begin, ends[other][static_cast<std::size_t>(start_[other] + *waits[other] - 1)]);
    return begin;
  }
  double seconds(const std::vector<std::vector<double>>& of_tasks) const { return of_tasks[index(phase().section)][task_]; }
  void advance() { ++task_, settle(); }

 private:
  const OrderedPhase& phase() const { return (*program_)[phase_]; }
  const std::vector<Task>& tasks() const { return schedule_->sections[index(phase().section)].tasks; }
  /// To the lane's next task from here on.
  void settle() {
    while (!ended()) {
      if (phase().tasks[lane_] == 0) {
        for (std::size_t l = 0; l < lane_count; ++l) start_[l] += phase().tasks[l] * (phase().repeat - repetition_);
        ++phase_, repetition_ = 0, task_ = 0;
        continue;
      }
      while (task_ < tasks().size() && static_cast<std::size_t>(tasks()[task_].lane) != lane_) ++task_;
      if (task_ < tasks().size()) return;
      for (std::size_t l = 0; l < lane_count; ++l) start_[l] += phase().tasks[l];
      task_ = 0;
      if (++repetition_ == phase().repeat) ++phase_, repetition_ = 0;
    }
  }

  const Schedule* schedule_;
  const OrderedProgram* program_;
  std::size_t lane_, phase_ = 0, task_ = 0;
  std::int64_t repetition_ = 0;
  std::array<std::int64_t, lane_count> start_{};
};

/// One program of all roles.
class Play {
 public:
  Play(std::span<const RunPlan> roles, ProgramKind kind, std::span<const std::vector<std::vector<double>>> seconds,
       const std::function<void(double)>& progress)
      : mesh_(roles.front().request.mesh), kind_(kind), roles_(roles), seconds_(seconds), progress_(progress) {
    for (std::size_t r = 0; r < roles.size(); ++r) {
      const RunPlan& role = roles[r];
      role_at_[role.request.rank] = static_cast<int>(r);
      programs_.push_back(order(role.schedule, role.memory, role.schedule.program(kind)));
      for (const OrderedPhase& phase : programs_.back())
        tasks_ += phase.repeat * std::accumulate(phase.tasks.begin(), phase.tasks.end(), std::int64_t{0});
      if (progress_) progress_(order_share * static_cast<double>(r + 1) / static_cast<double>(roles.size()));
    }
    ends_.resize(roles.size());
    for (std::size_t r = 0; r < roles.size(); ++r)
      for (std::size_t l = 0; l < lane_count; ++l) walks_.emplace_back(roles[r].schedule, programs_[r], l);
    is_awake_.assign(walks_.size(), false);
  }

  PlayedTogether run() {
    for (int r = 0; r < static_cast<int>(roles_.size()); ++r) wake(r);
    while (!awake_.empty() && fault_.empty()) {
      const auto [role, lane] = awake_.back();
      awake_.pop_back();
      is_awake_[index(role) * lane_count + lane] = false;
      step(role, lane);
    }
    return {.fault = fault_.empty() ? stuck() : fault_, .seconds = last_};
  }

 private:
  struct Member {
    int role = 0;
    std::size_t lane = 0;
  };

  LaneWalk& walk(const Member& m) { return walks_[index(m.role) * lane_count + m.lane]; }
  int rank(int role) const { return roles_[index(role)].request.rank; }
  bool ready(const Member& m) { return !walk(m).ended() && walk(m).ready(ends_[index(m.role)]); }
  void wake(int role) {
    for (std::size_t l = 0; l < lane_count; ++l) {
      const std::size_t at = index(role) * lane_count + l;
      if (is_awake_[at] || walks_[at].ended()) continue;
      is_awake_[at] = true;
      awake_.push_back({role, l});
    }
  }
  double begin(const Member& m) { return walk(m).begin(ends_[index(m.role)]); }
  double length(const Member& m) { return seconds_.empty() ? 0 : walk(m).seconds(seconds_[index(m.role)]); }
  void finish(const Member& m, double end) {
    last_ = std::max(last_, end);
    ends_[index(m.role)][m.lane].push_back(end);
    walk(m).advance();
    wake(m.role);
    constexpr std::int64_t often = 1 << 14;
    if (++done_ % often == 0 && progress_)
      progress_(order_share + (1 - order_share) * static_cast<double>(done_) / static_cast<double>(tasks_));
  }

  void step(int role, std::size_t lane) {
    const Member me{role, lane};
    if (!ready(me)) return;
    const std::vector<Member> others = partners(me);
    for (const Member& other : others)
      if (!ready(other) || !meets(me, other)) return;
    for (const Member& other : others) {
      if (matches(me, other)) continue;
      fault_ = fmt::format("{} is paired with {}, but they do not match", describe(me), describe(other));
      return;
    }
    double from = begin(me), longest = length(me);
    for (const Member& other : others) from = std::max(from, begin(other)), longest = std::max(longest, length(other));
    for (const Member& other : others) finish(other, from + longest);
    finish(me, from + longest);
  }

  /// The other roles that take part in what this lane has come to, none for a task of the rank alone.
  std::vector<Member> partners(const Member& me) {
    const Task& task = walk(me).task();
    std::vector<Member> found;
    if (const auto* transfer = std::get_if<Transfer>(&task.op)) {
      if (const int role = role_with(transfer->peer); role >= 0) found.push_back({role, me.lane});
    } else if (const auto* collective = std::get_if<Collective>(&task.op)) {
      for (const int role : roles_along(me.role, collective->axes)) found.push_back({role, me.lane});
    }
    return found;
  }
  /// The other roles of a role's group.
  const std::vector<int>& roles_along(int role, Axes axes) {
    const auto [at, fresh] = along_.try_emplace({role, axes});
    if (!fresh) return at->second;
    std::set<int> ranks;
    for (const int member : group_of(mesh_, axes, rank(role)).world) ranks.insert(role_of(mesh_, member));
    ranks.erase(rank(role));
    for (const int r : ranks)
      if (const auto known = role_at_.find(r); known != role_at_.end()) at->second.push_back(known->second);
    return at->second;
  }
  /// The role that a rank has; -1: it is not there.
  int role_with(int rank) {
    const auto [at, fresh] = role_with_.try_emplace(rank, -1);
    if (const auto known = fresh ? role_at_.find(role_of(mesh_, rank)) : role_at_.end(); known != role_at_.end())
      at->second = known->second;
    return at->second;
  }

  /// Whether the other one's task is one with this one's group.
  bool meets(const Member& me, const Member& other) {
    const Op &mine = walk(me).task().op, &theirs = walk(other).task().op;
    if (mine.index() != theirs.index()) return false;
    if (const auto* transfer = std::get_if<Transfer>(&theirs)) return role_with(transfer->peer) == me.role;
    return std::get<Collective>(mine).axes == std::get<Collective>(theirs).axes;
  }

  bool matches(const Member& me, const Member& other) {
    const LaneWalk &a = walk(me), &b = walk(other);
    if (const auto* mine = std::get_if<Transfer>(&a.task().op)) {
      const auto& theirs = std::get<Transfer>(b.task().op);
      return mine->sends != theirs.sends && mine->count == theirs.count && mine->dtype == theirs.dtype &&
             a.micro() + mine->ahead == b.micro() + theirs.ahead && mine->border == theirs.border && theirs.peer == rank(me.role) &&
             mine->peer == rank(other.role);
    }
    const auto &mine = std::get<Collective>(a.task().op), &theirs = std::get<Collective>(b.task().op);
    return a.task().name == b.task().name && mine.kind == theirs.kind && mine.count == theirs.count && mine.stride == theirs.stride &&
           mine.dtype == theirs.dtype && mine.accumulate == theirs.accumulate;
  }

  /// Of lanes that have not ended, one that has come to others who never come to it.
  std::string stuck() {
    std::string any;
    for (int r = 0; r < static_cast<int>(roles_.size()); ++r)
      for (std::size_t l = 0; l < lane_count; ++l) {
        const Member me{r, l};
        if (walk(me).ended()) continue;
        if (any.empty()) any = fmt::format("{} waits forever for other lanes of its rank", describe(me));
        if (ready(me)) return waiting(me);
      }
    return any;
  }

  /// Who waits for whom: where that one waits for a third, and so on, the last two.
  std::string waiting(Member me) {
    for (std::set<std::pair<int, std::size_t>> seen;;) {
      seen.insert({me.role, me.lane});
      const std::vector<Member> others = partners(me);
      const Member other = *std::ranges::find_if(others, [&](const Member& m) { return !ready(m) || !meets(me, m); });
      if (ready(other) && !seen.contains({other.role, other.lane})) {
        me = other;
        continue;
      }
      return fmt::format("{} waits forever for {}", describe(me),
                         walk(other).ended() ? fmt::format("rank {}, whose lane {} has ended", rank(other.role), lanes[other.lane].name)
                         : ready(other)      ? describe(other)
                                             : describe(other) + ", which waits for other lanes of its rank");
    }
  }

  std::string describe(const Member& m) {
    const LaneWalk& w = walk(m);
    const auto* transfer = std::get_if<Transfer>(&w.task().op);
    const std::string micro = w.in_micro_batches() ? fmt::format(" of micro-batch {}", w.micro() + (transfer ? transfer->ahead : 0)) : "";
    std::string what = fmt::format("rank {}: `{}`{} on lane {}", rank(m.role), w.task().name, micro, lanes[m.lane].name);
    if (transfer)
      what += fmt::format(" ({} {} {} rank {}{})", transfer->count, name_of(transfer->dtype), transfer->sends ? "to" : "from",
                          transfer->peer, transfer->border == 0 ? "" : fmt::format(", before virtual stage {}", transfer->border));
    if (const auto* c = std::get_if<Collective>(&w.task().op))
      what += fmt::format(" ({} {} over {})", c->count, name_of(c->dtype), tessera::describe(c->axes));
    return what + fmt::format(" in the program {}", name_of(kind_));
  }

  const Mesh& mesh_;
  ProgramKind kind_;
  std::span<const RunPlan> roles_;
  std::map<int, int> role_at_;              ///< by the rank that stands for it
  std::unordered_map<int, int> role_with_;  ///< by rank, those that were asked for
  std::vector<OrderedProgram> programs_;
  std::vector<LaneWalk> walks_;                                    ///< by role and lane
  std::vector<std::array<std::vector<double>, lane_count>> ends_;  ///< of tasks that are done, by role and lane
  std::span<const std::vector<std::vector<double>>> seconds_;
  double last_ = 0;
  std::vector<Member> awake_;   ///< lanes that may have something to do
  std::vector<bool> is_awake_;  ///< by role and lane
  std::map<std::pair<int, Axes>, std::vector<int>> along_;
  static constexpr double order_share = 0.5;  ///< of the time, that is spent before anything is played
  const std::function<void(double)>& progress_;
  std::int64_t tasks_ = 0, done_ = 0;
  std::string fault_;
};

}  // namespace

int role_of(const Mesh& mesh, int rank) {
  Coordinates at = coordinates_of(mesh, rank);
  for (const Axis axis : all_axes)
    if (contains(batch_axes(mesh), axis)) {
      int& mine = at[static_cast<std::size_t>(axis)];
      mine = axis == Axis::replicate && !mesh.shares_state ? std::min(mine, 1) : 0;
    }
  return rank_of(mesh, at);
}

std::vector<RunPlan> plan_roles(const BuildRequest& like) {
  std::vector<RunPlan> roles;
  for (int rank = 0; rank < like.mesh.ranks(); ++rank) {
    if (role_of(like.mesh, rank) != rank) continue;
    roles.push_back(plan_run(request_like(like, rank)));
  }
  return roles;
}

PlayedTogether play_together(std::span<const RunPlan> roles, ProgramKind kind, std::span<const std::vector<std::vector<double>>> seconds,
                             const std::function<void(double)>& progress) {
  return Play(roles, kind, seconds, progress).run();
}

std::string cross_check(std::span<const RunPlan> roles) {
  for (const ProgramRow& row : program_rows)
    if (std::string fault = play_together(roles, row.kind).fault; !fault.empty()) return fault;
  return "";
}

}  // namespace tessera
