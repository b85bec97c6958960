#include "base/backend.hpp"
#ifdef TESSERA_CUDA
#include "schedule/run/stream_executor.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "kernels/cuda/range.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "schedule/run/graph_capture.hpp"
#include "topology/failure/patience.hpp"

namespace tessera {
namespace {
constexpr std::int64_t ring = cuda::Streams::ring;
constexpr double check_seconds = 0.05;
/// A graph's nodes cost memory and a first launch that grows with them. A task has about ten, which are counted once there is a graph.
constexpr std::int64_t most_graph_tasks = most_graph_nodes / 10;

}  // namespace

StreamExecutor::StreamExecutor(TaskTable table, std::unique_ptr<cuda::Streams> streams, GraphMode graphs, LaneWatch watch)
    : table_(std::move(table)), streams_(std::move(streams)), graphs_(graphs), watch_(std::move(watch)) {
  for (auto& tasks : issued_tasks_) tasks.resize(cuda::Streams::ring);
}

void StreamExecutor::run(ProgramKind kind) {
  trace_.reset();
  execute(kind);
}

Timeline StreamExecutor::run_traced(ProgramKind kind) {
  Timeline timeline = room_for(table_, kind);
  std::vector<std::size_t> laps;
  for (const auto& lane : timeline.lanes) laps.push_back(lane.capacity());
  trace_.emplace(std::move(timeline), cuda::Stopwatch(*streams_, laps));
  trace_->timeline.begun = now_seconds();
  trace_->stopwatch.zero();
  execute(kind);
  Timeline done = std::move(trace_->timeline);
  for (std::size_t lane = 0; lane < lane_count; ++lane)
    for (std::size_t i = 0; i < done.lanes[lane].size(); ++i) {
      TaskTime& task = done.lanes[lane][i];
      std::tie(task.begin, task.end) = trace_->stopwatch.lap(lane, i);
      done.seconds = std::max(done.seconds, task.end);
    }
  done.graph = programs_[static_cast<std::size_t>(kind)].graph != nullptr;
  trace_.reset();  // its events are not the next run's to destroy
  return done;
}

void StreamExecutor::execute(ProgramKind kind) {
  times_ = {};
  issued_ = done_ = start_ = {};
  host_calls_.clear();
  host_error_ = nullptr, host_failed_ = false;
  Recorded& program = programs_[static_cast<std::size_t>(kind)];
  const double begin = now_seconds();
  const RunningProgram running(positions_, kind);
  const cuda::Range range(program_rows[static_cast<std::size_t>(kind)].name);
  try {
    if (!trace_ && (program.graph || (program.ran && wants_graph(kind) && capture(kind))))
      run_graph(program);
    else
      run_tasks(kind);
    throw_host_error();
  } catch (const Error& error) {
    const std::string where = unfinished();
    end_all();
    throw Error(error.code, where.empty() ? error.what() : fmt::format("{} ({})", error.what(), where));
  } catch (...) {
    end_all();
    throw;
  }
  for (std::size_t lane = 0; lane < lane_count; ++lane) positions_.leave(lane, now_seconds());
  program.ran = true;
  program.seconds = std::max(program.seconds, now_seconds() - begin);
}

void StreamExecutor::end_all() {
  // NCCL gives up a communicator only when no graph holds its collectives any more.
  for (Recorded& program : programs_) program.graph.reset();
  watch_.abort();  // or freeing memory on the way out would wait for the device for ever
}

bool StreamExecutor::wants_graph(ProgramKind kind) const {
  // Others run seldom, and copy to memory that a graph may not know.
  if (graphs_ == GraphMode::off || !row_of(kind).often) return false;
  if (graphs_ == GraphMode::on) return true;
  std::int64_t tasks = 0;
  for (const OrderedPhase& phase : table_.program(kind))
    tasks += phase.repeat * static_cast<std::int64_t>(table_.tasks(phase.section).size());
  return tasks <= most_graph_tasks;
}

bool StreamExecutor::capture(ProgramKind kind) {
  Recorded& program = programs_[static_cast<std::size_t>(kind)];
  capturing_ = &program;
  program.graph = capture_graph(
      *streams_, graphs_, [&] { issue_all(kind); },
      [&] {
        capturing_ = nullptr;
        issued_ = done_ = start_ = {};
        program.tasks = {}, program.host_calls.clear();
        watch_.check(0);  // a rank that was lost meanwhile is not CUDA's refusal
      });
  capturing_ = nullptr;
  program.whole.name = fmt::format("the graph of {}", name_of(kind));
  return program.graph != nullptr;
}

void StreamExecutor::run_graph(const Recorded& program) {
  const double begin = now_seconds();
  issued_ = done_ = start_ = {};
  streams_->clear_marks();
  streams_->forget_calls();
  marks_ = 0;
  program.graph->launch((*streams_)[0]);
  record(0, program.whole);
  times_.busy[0] = now_seconds() - begin;
  running_ = &program;
  await(0, 1);
  running_ = nullptr;
}

void StreamExecutor::run_tasks(ProgramKind kind) {
  issue_all(kind);
  for (std::size_t lane = 0; lane < lane_count; ++lane) await(lane, issued_[lane]);
}

void StreamExecutor::issue_all(ProgramKind kind) {
  streams_->forget_calls();
  streams_->fork();
  for (const OrderedPhase& phase : table_.program(kind))
    for (std::int64_t repetition = 0; repetition < phase.repeat; ++repetition) issue(phase, repetition);
  streams_->join();
}

void StreamExecutor::bring_nothing(const OrderedPhase& phase, int task) {
  const Task& what = table_.tasks(phase.section)[static_cast<std::size_t>(task)];
  const auto* collective = std::get_if<Collective>(&what.op);
  if (!collective || collective->dtype != DType::u32) return;
  const kernels::Context context{{}, false, kernels::Backend::cuda, (*streams_)[static_cast<std::size_t>(Lane::compute)]};
  kernels::fill_zero(context, table_.addresses_of(phase.section, task, phase.micro.value_or(0))[0],
                     static_cast<std::size_t>(what.uses[0].bytes));
}

void StreamExecutor::warm_up(ProgramKind kind) {
  constexpr auto lane = static_cast<std::size_t>(Lane::compute);
  issued_ = done_ = start_ = {};
  streams_->mark(lane, 0);  // what graphs have beside tasks
  for (const OrderedPhase& phase : table_.program(kind)) {
    const auto& tasks = table_.tasks(phase.section);
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      if (tasks[i].lane != Lane::compute) {
        bring_nothing(phase, static_cast<int>(i));
        continue;
      }
      table_.run(phase.section, static_cast<int>(i), phase.micro.value_or(0));
      try {  // Kernels run here for the first time: a fault of one is named as its task's.
        record(lane, tasks[i]);
        await(lane, issued_[lane]);
      } catch (const Error& error) {
        throw Error(error.code, fmt::format("{} (in task `{}`)", error.what(), tasks[i].name));
      }
    }
  }
}

void StreamExecutor::issue(const OrderedPhase& phase, std::int64_t repetition) {
  const auto& tasks = table_.tasks(phase.section);
  const auto& waits = phase.waits_of(repetition);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const auto lane = static_cast<std::size_t>(tasks[i].lane);
    const double begin = now_seconds();
    for (std::size_t other = 0; other < lane_count; ++other)
      // The list's order satisfies every wait, so what is waited for has been issued.
      if (other != lane && waits[i][other] && start_[other] + *waits[i][other] > done_[other])
        streams_->wait(lane, other, start_[other] + *waits[i][other]);
    if (capturing_ && tasks[i].lane != Lane::compute) {
      capturing_->tasks[lane].push_back(&tasks[i]);
      streams_->mark(lane, static_cast<std::int64_t>(capturing_->tasks[lane].size()));
    }
    const cuda::Range range(tasks[i].name.c_str());
    run_task(phase, static_cast<int>(i), repetition);
    record(lane, tasks[i]);
    times_.busy[lane] += now_seconds() - begin;
  }
  for (std::size_t l = 0; l < lane_count; ++l) start_[l] += phase.tasks[l];
}

void StreamExecutor::run_task(const OrderedPhase& phase, int task, std::int64_t repetition) {
  if (!trace_) return call(phase, task, repetition);
  const Task& what = table_.tasks(phase.section)[static_cast<std::size_t>(task)];
  const auto lane = static_cast<std::size_t>(what.lane);
  trace_->stopwatch.start(lane);
  call(phase, task, repetition);
  trace_->stopwatch.stop(lane);
  trace_->timeline.lanes[lane].push_back({.task = &what, .micro_batch = phase.micro_of(repetition)});
}

void StreamExecutor::call(const OrderedPhase& phase, int task, std::int64_t repetition) {
  const Lane lane = table_.tasks(phase.section)[static_cast<std::size_t>(task)].lane;
  const std::int64_t micro = phase.micro_of(repetition).value_or(0);
  if (!info_of(lane).on_host) return table_.run(phase.section, task, micro);
  std::deque<HostCall>& calls = capturing_ ? capturing_->host_calls : host_calls_;
  HostCall& made = calls.emplace_back(this, phase.section, task, micro);
  made.call = {.function = call_on_host, .data = &made};
  streams_->call(static_cast<std::size_t>(lane), made.call);
}

void StreamExecutor::call_on_host(void* host_call) noexcept {
  const HostCall& call = *static_cast<const HostCall*>(host_call);
  StreamExecutor& self = *call.executor;
  if (self.host_failed_) return;  // what comes after a failed task has nothing to work on
  try {
    self.table_.run(call.section, call.task, call.micro);
  } catch (...) {
    const std::lock_guard lock(self.host_mutex_);
    self.host_error_ = std::current_exception();
    self.host_failed_ = true;
  }
}

void StreamExecutor::throw_host_error() {
  if (!host_failed_) return;
  const std::lock_guard lock(host_mutex_);
  std::rethrow_exception(host_error_);
}

void StreamExecutor::record(std::size_t lane, const Task& task) {
  const std::int64_t number = issued_[lane] + 1;
  if (!capturing_) await(lane, number - ring);
  issued_tasks_[lane][static_cast<std::size_t>(number % ring)] = &task;
  streams_->record(lane, number);
  issued_[lane] = number;
}

void StreamExecutor::await(std::size_t lane, std::int64_t count) {
  Patience patience;
  double begin = now_seconds(), checked = begin, limit = say_after();
  while (done_[lane] < count) {
    if (see_progress()) {
      begin = now_seconds(), limit = say_after();
      patience = {};
      continue;
    }
    const double now = now_seconds();
    if (now - checked > check_seconds) {
      checked = now;
      throw_host_error();
      const double waited = patience.waited(now);
      note_positions(begin);
      watch_.check(waited);
      if (waited > limit) {
        limit *= 2;
        warning("on this GPU no task has ended for {:.0f} s: {}{}", waited, unfinished(),
                running_ ? " (kernels.cuda_graph=\"off\" would name the task)" : "");
      }
    }
    now - begin < 2e-3 ? sched_yield() : usleep(20);
  }
}

void StreamExecutor::note_positions(double since) {
  for (std::size_t lane = 0; lane < lane_count; ++lane)
    if (done_[lane] < issued_[lane])
      positions_.enter(lane, *issued_tasks_[lane][static_cast<std::size_t>((done_[lane] + 1) % ring)], since);
    else
      positions_.leave(lane, since);
}

double StreamExecutor::say_after() const {
  return running_ ? std::max(watch_.say_after, watch_.patience * running_->seconds) : watch_.say_after;
}

/// Whether a task has ended since the last call.
bool StreamExecutor::see_progress() {
  bool moved = false;
  for (std::size_t lane = 0; lane < lane_count; ++lane)
    for (; done_[lane] < issued_[lane] && streams_->done(lane, done_[lane] + 1); moved = true) ++done_[lane];
  if (!running_) return moved;
  // A graph is one task here, however long it is; its marks show that it goes on.
  std::int64_t marks = 0;
  for (std::size_t lane = 0; lane < lane_count; ++lane) marks += streams_->reached(lane);
  return std::exchange(marks_, marks) != marks || moved;
}

std::string StreamExecutor::unfinished() const {
  std::string text;
  auto add = [&](std::size_t lane, const char* verb, const std::string& task) {
    text += fmt::format("{}lane {} {} `{}`", text.empty() ? "" : ", ", name_of(static_cast<Lane>(lane)), verb, task);
  };
  for (std::size_t lane = 0; lane < lane_count; ++lane)
    if (done_[lane] < issued_[lane]) add(lane, "is at", issued_tasks_[lane][static_cast<std::size_t>((done_[lane] + 1) % ring)]->name);
  if (!running_) return text;
  for (std::size_t lane = 0; lane < lane_count; ++lane)
    if (const std::int64_t begun = streams_->reached(lane); begun > 0)
      add(lane, "has reached", running_->tasks[lane][static_cast<std::size_t>(begun - 1)]->name);
  return text;
}

}  // namespace tessera

#endif
