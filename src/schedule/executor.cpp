#include "schedule/executor.hpp"

#include "base/clock.hpp"

namespace tessera {
namespace {
/// Uses per task are few; a task's addresses of one micro-batch fit here, so that running allocates nothing.
constexpr std::size_t max_uses = 64;
}  // namespace

Executor::Executor(const Schedule& schedule, const MemoryPlan& plan, std::array<std::byte*, tier_count> bases, LaneMode mode,
                   TaskFunction run)
    : schedule_(schedule), mode_(mode), run_(std::move(run)) {
  for (ProgramKind kind : {ProgramKind::train, ProgramKind::evaluate, ProgramKind::publish})
    programs_[static_cast<std::size_t>(kind)] = order(schedule, plan, schedule.program(kind));
  for (const Section& section : schedule.sections) {
    auto& tasks = addresses_.emplace_back();
    for (const Task& task : section.tasks) {
      auto& a = tasks.emplace_back();
      for (const Use& use : task.uses) {
        const auto b = static_cast<std::size_t>(use.buffer);
        std::byte* base = bases[static_cast<std::size_t>(schedule.buffers[b].tier)];
        a.base.push_back(use.bytes == 0 ? nullptr : base + plan.offset[b] + use.offset);
        a.stride.push_back(use.micro_stride);
      }
      TESSERA_REQUIRE(a.base.size() <= max_uses, "{} has {} uses", task.name, a.base.size());
    }
  }
  if (mode_ == LaneMode::threads)
    for (std::size_t lane = 1; lane < lane_count; ++lane) threads_.emplace_back([this, lane] { worker(lane); });
}

Executor::~Executor() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Executor::run(ProgramKind kind) {
  const OrderedProgram& program = programs_[static_cast<std::size_t>(kind)];
  times_ = {};
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

void Executor::worker(std::size_t lane) {
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

void Executor::run_inline(const OrderedProgram& program) {
  for (const OrderedPhase& phase : program)
    for (std::int64_t repetition = 0; repetition < phase.repeat; ++repetition) {
      const auto& tasks = schedule_.sections[static_cast<std::size_t>(phase.section)].tasks;
      for (int t = 0; t < static_cast<int>(tasks.size()); ++t) {
        const auto lane = static_cast<std::size_t>(tasks[static_cast<std::size_t>(t)].lane);
        const double begin = now_seconds();
        run_task(phase.section, t, phase.micro_begin + repetition);
        times_.busy[lane] += now_seconds() - begin;
      }
    }
}

void Executor::run_lane(const OrderedProgram& program, std::size_t lane) {
  std::array<std::int64_t, lane_count> start{};
  try {
    for (const OrderedPhase& phase : program) {
      const auto& tasks = schedule_.sections[static_cast<std::size_t>(phase.section)].tasks;
      for (std::int64_t repetition = 0; repetition < phase.repeat; ++repetition) {
        const auto& waits = repetition == 0 ? phase.first : phase.steady;
        for (int t = 0; t < static_cast<int>(tasks.size()); ++t) {
          const auto i = static_cast<std::size_t>(t);
          if (static_cast<std::size_t>(tasks[i].lane) != lane) continue;
          const double begin = now_seconds();
          if (!wait_for(lane, waits[i], start)) return;
          const double ready = now_seconds();
          run_task(phase.section, t, phase.micro_begin + repetition);
          times_.waited[lane] += ready - begin;
          times_.busy[lane] += now_seconds() - ready;
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

bool Executor::wait_for(std::size_t lane, const Waits& waits, const std::array<std::int64_t, lane_count>& start) {
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

void Executor::run_task(int section, int task, std::int64_t micro) {
  const Addresses& a = addresses_[static_cast<std::size_t>(section)][static_cast<std::size_t>(task)];
  std::array<void*, max_uses> at;
  for (std::size_t i = 0; i < a.base.size(); ++i) at[i] = static_cast<std::byte*>(a.base[i]) + a.stride[i] * micro;
  const Task& what = schedule_.sections[static_cast<std::size_t>(section)].tasks[static_cast<std::size_t>(task)];
  try {
    run_({what, {at.data(), a.base.size()}});
  } catch (const Error& error) {
    throw Error(error.code, fmt::format("{} (in task `{}`)", error.what(), what.name));
  }
}

void Executor::fail_with(std::exception_ptr error) {
  {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = error;  // the first cause is kept
  }
  failed_ = true;
  // Waiters sleep on the counters; a jump far ahead wakes them, and they see the failure.
  for (auto& done : done_) {
    done.fetch_add(std::int64_t{1} << 40, std::memory_order_release);
    done.notify_all();
  }
}

}  // namespace tessera
