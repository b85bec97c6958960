#include "schedule/run/executor.hpp"

#include <algorithm>

#include "base/clock.hpp"

namespace tessera {

std::vector<TaskAt> LanePositions::tasks() const {
  std::vector<TaskAt> all;
  const double now = now_seconds();
  for (std::size_t lane = 0; lane < lane_count; ++lane)
    if (const Task* task = tasks_[lane].load(std::memory_order_acquire))
      all.push_back({std::string(name_of(static_cast<Lane>(lane))), task->name, now - since_[lane].load(std::memory_order_relaxed)});
  return all;
}

double LanePositions::moved() const {
  double last = 0;
  for (const std::atomic<double>& since : since_) last = std::max(last, since.load(std::memory_order_relaxed));
  return last;
}

HostExecutor::HostExecutor(TaskTable table, LaneMode mode, LaneWatch watch)
    : table_(std::move(table)), mode_(mode), watch_(std::move(watch)) {
  if (mode_ == LaneMode::threads)
    for (std::size_t lane = 1; lane < lane_count; ++lane)
      if (table_.uses(static_cast<Lane>(lane))) threads_.emplace_back([this, lane] { worker(lane); });
}

HostExecutor::~HostExecutor() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void HostExecutor::run(ProgramKind kind) {
  timeline_.reset();
  execute(kind);
}

Timeline HostExecutor::run_traced(ProgramKind kind) {
  timeline_.emplace(room_for(table_, kind));
  const double begin = now_seconds();
  execute(kind);
  Timeline done = std::move(*timeline_);
  timeline_.reset();
  done.begun = begin, done.seconds = now_seconds() - begin;
  for (auto& lane : done.lanes)
    for (TaskTime& task : lane) task.begin -= begin, task.end -= begin;
  return done;
}

void HostExecutor::execute(ProgramKind kind) {
  const OrderedProgram& program = table_.program(kind);
  times_ = {};
  const RunningProgram running(positions_, kind);
  if (mode_ == LaneMode::inline_order) return run_inline(program);
  for (auto& done : done_) done = 0;
  failed_ = false;
  {
    std::lock_guard lock(mutex_);
    error_ = nullptr;
    running_ = &program;
    active_ = static_cast<int>(threads_.size());
    ++generation_;
  }
  wake_.notify_all();
  run_lane(program, 0);
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return active_ == 0; });
  if (error_) std::rethrow_exception(error_);
}

void HostExecutor::worker(std::size_t lane) {
  std::int64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || generation_ != seen; });
    if (stopping_) return;
    seen = generation_;
    const OrderedProgram* program = running_;
    lock.unlock();
    run_lane(*program, lane);
    lock.lock();
    if (--active_ == 0) finished_.notify_all();
  }
}

void HostExecutor::run_inline(const OrderedProgram& program) {
  for (const OrderedPhase& phase : program)
    for (std::int64_t repetition = 0; repetition < phase.repeat; ++repetition) {
      const auto& tasks = table_.tasks(phase.section);
      for (int t = 0; t < static_cast<int>(tasks.size()); ++t) run_task(phase, t, repetition);
    }
}

/// The one place where a task is called, and its time is taken.
void HostExecutor::run_task(const OrderedPhase& phase, int task, std::int64_t repetition) {
  const Task& what = table_.tasks(phase.section)[static_cast<std::size_t>(task)];
  const auto lane = static_cast<std::size_t>(what.lane);
  const double begin = now_seconds();
  positions_.enter(lane, what, begin);
  table_.run(phase.section, task, phase.micro_of(repetition).value_or(0));
  const double end = now_seconds();
  positions_.leave(lane, end);
  times_.busy[lane] += end - begin;
  if (timeline_) timeline_->lanes[lane].push_back({&what, phase.micro_of(repetition), begin, end});
}

void HostExecutor::run_lane(const OrderedProgram& program, std::size_t lane) {
  std::array<std::int64_t, lane_count> start{};
  try {
    for (const OrderedPhase& phase : program) {
      const auto& tasks = table_.tasks(phase.section);
      for (std::int64_t repetition = 0; repetition < phase.repeat; ++repetition) {
        const auto& waits = phase.waits_of(repetition);
        for (int t = 0; t < static_cast<int>(tasks.size()); ++t) {
          const auto i = static_cast<std::size_t>(t);
          if (static_cast<std::size_t>(tasks[i].lane) != lane) continue;
          const double begin = now_seconds();
          if (!wait_for(lane, waits[i], start)) return;
          times_.waited[lane] += now_seconds() - begin;
          run_task(phase, t, repetition);
          done_[lane].fetch_add(1, std::memory_order_release);
          done_[lane].notify_all();
        }
        for (std::size_t l = 0; l < lane_count; ++l) start[l] += phase.tasks[l];
      }
    }
  } catch (...) {
    fail_with(std::current_exception());
  }
}

bool HostExecutor::wait_for(std::size_t lane, const Waits& waits, const std::array<std::int64_t, lane_count>& start) {
  for (std::size_t other = 0; other < lane_count; ++other) {
    if (other == lane || !waits[other]) continue;
    const std::int64_t target = start[other] + *waits[other];
    for (std::int64_t now = done_[other].load(std::memory_order_acquire); now < target;
         now = done_[other].load(std::memory_order_acquire)) {
      if (failed_.load()) return false;
      done_[other].wait(now, std::memory_order_acquire);
    }
  }
  return !failed_.load();
}

void HostExecutor::fail_with(std::exception_ptr error) {
  {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = error;  // the first cause is kept
  }
  // Another lane may be inside a collective for which the peers of this one will not come.
  if (!failed_.exchange(true)) watch_.abort();
  // Waiters sleep on the counters; a jump far ahead wakes them, and they see the failure.
  for (auto& done : done_) {
    done.fetch_add(std::int64_t{1} << 40, std::memory_order_release);
    done.notify_all();
  }
}

}  // namespace tessera
