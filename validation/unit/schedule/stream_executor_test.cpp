// Running programs on streams, in the emulator: lanes wait for each other alone and as far as the schedule says, also when more tasks are
// under way than streams keep events; a task that never ends is named, and given up before the error leaves.
#include "schedule/run/stream_executor.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <emulator.hpp>
#include <random>
#include <thread>

#include "base/clock.hpp"
#include "schedule/plan/memory_plan.hpp"
#include "timelines.hpp"

namespace tessera {
namespace {

constexpr std::int64_t repetitions = 2 * static_cast<std::int64_t>(cuda::Streams::ring) + 7;

/// `gather` writes the number of its repetition, `add` sums it up, `reduce` sums up the sums.
Schedule counting() {
  Schedule s;
  s.buffers = {{"sum", Category::scalars, Tier::host, 8, Life::run},
               {"sums", Category::scalars, Tier::host, 8, Life::run},
               {"gathered", Category::gathered, Tier::host, 8}};
  s.sections = {{"body",
                 {{.name = "gather", .op = Zero{}, .lane = Lane::gather, .uses = {{2, 0, 8, Access::write}}},
                  {.name = "add", .op = Zero{}, .lane = Lane::compute, .uses = {{0, 0, 8, Access::add}, {2, 0, 8, Access::read}}},
                  {.name = "reduce", .op = Zero{}, .lane = Lane::reduce, .uses = {{1, 0, 8, Access::add}, {0, 0, 8, Access::read}}}}}};
  s.program(ProgramKind::train).phases = {{0, repetitions}};
  return s;
}

std::int64_t& number(void* at) { return *static_cast<std::int64_t*>(at); }

/// Does what the task says, later: after `polls` questions for the stream.
emulator::Work work_of(const TaskRun& run, std::int64_t repetition, int polls) {
  return [name = run.task.name, to = run.at[0], from = run.at.size() > 1 ? run.at[1] : nullptr, repetition, polls]() mutable {
    if (polls-- > 0) return false;
    if (name == "gather")
      number(to) = repetition;
    else
      number(to) += number(from);
    return true;
  };
}

/// Compute, gather and reduce have one, and what runs on the host.
std::vector<cuda::StreamKind> kinds() {
  std::vector<cuda::StreamKind> kinds(lane_count, cuda::StreamKind::none);
  kinds[0] = cuda::StreamKind::usual, kinds[1] = kinds[2] = cuda::StreamKind::urgent;
  kinds[static_cast<std::size_t>(Lane::cpu_optimizer)] = cuda::StreamKind::usual;
  return kinds;
}

struct LaggingLanes {
  Schedule schedule = counting();
  MemoryPlan plan = place(schedule);
  std::vector<std::byte> memory = std::vector<std::byte>(static_cast<std::size_t>(plan.bytes[static_cast<std::size_t>(Tier::host)]));
  std::unique_ptr<cuda::Streams> streams = std::make_unique<cuda::Streams>(kinds());
  std::array<cudaStream_t, lane_count> of_lane{(*streams)[0], (*streams)[1], (*streams)[2]};
  std::int64_t gathers = 0;

  StreamExecutor executor(TaskFunction run, LaneWatch watch = {}, GraphMode graphs = GraphMode::off) {
    std::array<std::byte*, tier_count> bases{};
    bases[static_cast<std::size_t>(Tier::host)] = memory.data();
    return StreamExecutor({schedule, plan, bases, std::move(run)}, std::move(streams), graphs, std::move(watch));
  }
  cudaStream_t stream(const TaskRun& run) const { return of_lane[static_cast<std::size_t>(run.task.lane)]; }
  std::int64_t value(std::size_t buffer) { return number(memory.data() + plan.offset[buffer]); }
};

TEST(Streams, AreOfLanesInUseAndThoseOfCollectivesGoFirst) {
  const cuda::Streams streams(kinds());
  for (const Lane lane : {Lane::tensor, Lane::wrapped_streams, Lane::host_snapshot})
    EXPECT_EQ(streams[static_cast<std::size_t>(lane)], nullptr) << name_of(lane);
  int compute = 0, gather = 0;
  cudaStreamGetPriority(streams[0], &compute), cudaStreamGetPriority(streams[1], &gather);
  EXPECT_LT(gather, compute) << "a lower number is a higher priority";
  streams.fork(), streams.join();
}

// Else a collective in a graph would wait until a product's blocks have all been dealt out.
TEST(Streams, KeepTheirPrioritiesInAGraph) {
  const cuda::Streams streams(kinds());
  const int before = emulator::graphs_without_priorities();
  const auto graph = streams.capture([&] { streams.fork(), streams.mark(1, 1), streams.join(); });
  EXPECT_GT(graph->nodes(), 0u);
  EXPECT_EQ(emulator::graphs_without_priorities(), before);
}

TEST(StreamExecutor, LanesThatLagGiveWhatOneThreadGives) {
  std::mt19937 random(1);
  LaggingLanes lanes;
  auto executor = lanes.executor([&](const TaskRun& run) {
    if (run.task.name == "gather") ++lanes.gathers;
    emulator::enqueue(lanes.stream(run), work_of(run, lanes.gathers, static_cast<int>(random() % 4)));
  });
  executor.run(ProgramKind::train);
  std::int64_t sum = 0, sums = 0;
  for (std::int64_t i = 1; i <= repetitions; ++i) sum += i, sums += sum;
  EXPECT_EQ(lanes.value(0), sum);
  EXPECT_EQ(lanes.value(1), sums);
}

/// Runs `times` times; returns how many gathers the host issued in each run. Each run must add the same to the sums.
std::vector<std::int64_t> run_with_graphs(
    GraphMode graphs, int times, const std::function<void()>& in_each_gather = [] {}) {
  std::mt19937 random(1);
  LaggingLanes lanes;
  auto executor = lanes.executor(
      [&](const TaskRun& run) {
        if (run.task.name == "gather") in_each_gather(), ++lanes.gathers;
        emulator::enqueue(lanes.stream(run), work_of(run, (lanes.gathers - 1) % repetitions + 1, static_cast<int>(random() % 4)));
      },
      {}, graphs);
  std::vector<std::int64_t> issued;
  std::int64_t sum = 0, sums = 0;
  for (int run = 0; run < times; ++run) {
    const std::int64_t before = lanes.gathers;
    executor.run(ProgramKind::train);
    issued.push_back(lanes.gathers - before);
    for (std::int64_t i = 1; i <= repetitions; ++i) sum += i, sums += sum;
    EXPECT_EQ(lanes.value(0), sum) << run;
    EXPECT_EQ(lanes.value(1), sums) << run;
    lanes.gathers = repetitions * (run + 1);
  }
  return issued;
}

TEST(StreamExecutor, AGraphOfTheSecondRunGivesWhatTasksGive) {
  constexpr std::int64_t all = repetitions;
  EXPECT_EQ(run_with_graphs(GraphMode::on, 4), (std::vector<std::int64_t>{all, all, 0, 0}));
  EXPECT_EQ(run_with_graphs(GraphMode::automatic, 4), (std::vector<std::int64_t>{all, all, 0, 0}));
  EXPECT_EQ(run_with_graphs(GraphMode::off, 3), (std::vector<std::int64_t>{all, all, all}));
}

// In any state of the graph, and with more tasks than a ring of events; a graph that was there runs again afterwards.
TEST(StreamExecutor, TimelinesAreTrueToTheProgram) {
  for (GraphMode graphs : {GraphMode::off, GraphMode::on}) {
    std::mt19937 random(1);
    LaggingLanes lanes;
    auto executor = lanes.executor(
        [&](const TaskRun& run) {
          if (run.task.name == "gather") ++lanes.gathers;
          emulator::enqueue(lanes.stream(run), work_of(run, (lanes.gathers - 1) % repetitions + 1, static_cast<int>(random() % 4)));
        },
        {}, graphs);
    std::int64_t sum = 0, sums = 0;
    for (int run = 0; run < 6; ++run) {
      const bool traced = run % 2 == 0;
      lanes.gathers = 0;
      if (traced) {
        const Timeline timeline = executor.run_traced(ProgramKind::train);
        test::expect_true_to(timeline, lanes.schedule, lanes.plan, ProgramKind::train);
        EXPECT_GT(timeline.seconds, 0);
        EXPECT_EQ(timeline.graph, graphs == GraphMode::on && run > 1) << run;
        EXPECT_EQ(lanes.gathers, repetitions) << "tasks of a run that is traced are issued one by one";
      } else {
        executor.run(ProgramKind::train);
        EXPECT_EQ(lanes.gathers, graphs == GraphMode::on && run > 1 ? 0 : repetitions) << run;
      }
      for (std::int64_t i = 1; i <= repetitions; ++i) sum += i, sums += sum;
      EXPECT_EQ(lanes.value(0), sum) << run;
      EXPECT_EQ(lanes.value(1), sums) << run;
    }
  }
}

TEST(StreamExecutor, ATracedTaskThatNeverEndsIsNamedToo) {
  LaggingLanes lanes;
  bool given_up = false;
  auto executor =
      lanes.executor([&](const TaskRun& run) { emulator::enqueue(lanes.stream(run), [&] { return given_up; }); },
                     {.check = [](double) { fail(ExitCode::environment, "somebody does not come"); }, .abort = [&] { given_up = true; }});
  EXPECT_THROW(executor.run_traced(ProgramKind::train), Error);
  EXPECT_TRUE(given_up);
}

TEST(StreamExecutor, AGraphOfMoreNodesThanAllowedIsNone) {
  const cuda::Streams streams(kinds());
  const auto capture = [&](std::size_t most) {
    return streams.capture(
        [&] {
          streams.fork();
          for (std::int64_t i = 0; i < 5; ++i) streams.mark(1, i);
          streams.join();
        },
        most);
  };
  const std::size_t nodes = capture(1000)->nodes();
  EXPECT_GE(nodes, 5u);
  EXPECT_EQ(capture(nodes)->nodes(), nodes);
  std::string text;
  try {
    capture(nodes - 1);
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_NE(text.find(fmt::format("{} nodes", nodes)), std::string::npos) << text;
  EXPECT_EQ(emulator::live_graphs(), 0);
}

// What waits for a stream cannot be captured.
TEST(StreamExecutor, WhereCudaRefusesAGraphTasksGoOn) {
  std::int64_t calls = 0;
  auto wait_for_all = [&] {
    ++calls;
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize()", __FILE__, __LINE__);
  };
  run_with_graphs(GraphMode::automatic, 3, wait_for_all);
  EXPECT_EQ(calls, 3 * repetitions + 1) << "a graph was tried once";
  EXPECT_THROW(run_with_graphs(GraphMode::on, 2, wait_for_all), Error);
}

/// The counting program with its sums made by host code: "reduce" on the lane whose tasks streams call.
struct HostLane : LaggingLanes {
  HostLane() {
    schedule.sections[0].tasks[2].lane = Lane::cpu_optimizer;
    plan = place(schedule);
  }
  StreamExecutor executor_of(
      GraphMode graphs, std::function<void()> in_each_sum = [] {}) {
    return executor(
        [this, in_each_sum](const TaskRun& run) {
          if (run.task.lane == Lane::cpu_optimizer) return in_each_sum(), static_cast<void>(number(run.at[0]) += number(run.at[1]));
          if (run.task.name == "gather") ++gathers;
          emulator::enqueue(stream(run), work_of(run, (gathers - 1) % repetitions + 1, static_cast<int>(random() % 4)));
        },
        {}, graphs);
  }
  std::mt19937 random{1};
};

TEST(StreamExecutor, HostCodeRunsWhenItsStreamComesToIt) {
  for (GraphMode graphs : {GraphMode::off, GraphMode::on}) {
    HostLane lanes;
    std::int64_t called = 0, sum = 0, sums = 0;
    auto executor = lanes.executor_of(graphs, [&] { ++called; });
    for (int run = 1; run <= 4; ++run) {
      executor.run(ProgramKind::train);
      EXPECT_EQ(called, run * repetitions) << "a graph calls it too";
      for (std::int64_t i = 1; i <= repetitions; ++i) sum += i, sums += sum;
      EXPECT_EQ(lanes.value(0), sum) << run;
      EXPECT_EQ(lanes.value(1), sums) << run;
    }
    test::expect_true_to(executor.run_traced(ProgramKind::train), lanes.schedule, lanes.plan, ProgramKind::train);
  }
}

TEST(StreamExecutor, HostCodeThatFailsEndsTheRunWithItsError) {
  for (GraphMode graphs : {GraphMode::off, GraphMode::on})
    for (const std::int64_t bad : {std::int64_t{2}, repetitions, 3 * repetitions}) {
      HostLane lanes;
      std::int64_t called = 0;
      auto executor = lanes.executor_of(graphs, [&] {
        if (++called == bad) fail(ExitCode::storage, "the host is out of order");
      });
      std::string what;
      try {
        for (int run = 0; run < 4; ++run) executor.run(ProgramKind::train);
      } catch (const Error& error) {
        EXPECT_EQ(error.code, ExitCode::storage);
        what = error.what();
      }
      EXPECT_EQ(what.find("the host is out of order (in task `reduce`)"), 0u) << what;
      EXPECT_EQ(called, bad) << "nothing follows it";
    }
}

// The host's Adam lasts until a gather beside it is done, whose host function NCCL has in a graph.
TEST(StreamExecutor, LongHostCodeDoesNotDelayACollective) {
  for (GraphMode graphs : {GraphMode::off, GraphMode::on}) {
    LaggingLanes lanes;
    lanes.schedule = {};
    lanes.schedule.buffers = {{"state", Category::state, Tier::host, 8, Life::run}, {"gathered", Category::gathered, Tier::host, 8}};
    lanes.schedule.sections = {{"body",
                                {{.name = "adam", .op = Zero{}, .lane = Lane::cpu_optimizer, .uses = {{0, 0, 8, Access::add}}},
                                 {.name = "gather", .op = Zero{}, .lane = Lane::gather, .uses = {{1, 0, 8, Access::write}}}}}};
    lanes.schedule.program(ProgramKind::train).phases = {{0, 1}};
    lanes.plan = place(lanes.schedule);
    lanes.memory.resize(static_cast<std::size_t>(lanes.plan.bytes[static_cast<std::size_t>(Tier::host)]));
    std::atomic<bool> gathered = false;
    int in_time = 0;
    auto executor = lanes.executor(
        [&](const TaskRun& run) {
          if (run.task.lane == Lane::gather) {
            const auto of_nccl = [](void* said) { *static_cast<std::atomic<bool>*>(said) = true; };
            ASSERT_EQ(cudaLaunchHostFunc(lanes.stream(run), of_nccl, &gathered), cudaSuccess);
            return;
          }
          const double begin = now_seconds();
          while (!gathered && now_seconds() - begin < 5) std::this_thread::yield();
          in_time += gathered.exchange(false);
        },
        {}, graphs);
    for (int run = 1; run <= 3; ++run) {
      executor.run(ProgramKind::train);
      EXPECT_EQ(in_time, run);
    }
  }
}

/// The error of a run whose `stuck`-th gather ends only when it is given up.
std::string error_of_stuck_run(std::int64_t stuck, int& aborts, GraphMode graphs = GraphMode::off) {
  LaggingLanes lanes;
  bool given_up = false;
  LaneWatch watch{.check =
                      [&lanes, stuck](double waited) {
                        if (lanes.gathers >= stuck && waited > 0.2) fail(ExitCode::environment, "somebody does not come");
                      },
                  .abort = [&] { ++aborts, given_up = true; }};
  auto executor = lanes.executor(
      [&](const TaskRun& run) {
        if (run.task.name == "gather" && ++lanes.gathers == stuck)
          emulator::enqueue(lanes.stream(run), [&] { return given_up; });
        else
          emulator::enqueue(lanes.stream(run), work_of(run, lanes.gathers, 0));
      },
      watch, graphs);
  try {
    executor.run(ProgramKind::train);
    executor.run(ProgramKind::train);
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::environment);
    return error.what();
  }
  return "";
}

TEST(StreamExecutor, ATaskThatNeverEndsIsNamedAndGivenUp) {
  // While tasks are issued, and at the end when all have been.
  for (std::int64_t stuck : {std::int64_t{3}, repetitions}) {
    int aborts = 0;
    const std::string what = error_of_stuck_run(stuck, aborts);
    EXPECT_EQ(what.find("somebody does not come"), 0u) << what;
    EXPECT_NE(what.find("lane gather is at `gather`"), std::string::npos) << what;
    EXPECT_NE(what.find("lane compute is at `add`"), std::string::npos) << what;
    EXPECT_EQ(aborts, 1);
  }
}

TEST(StreamExecutor, AGraphThatNeverEndsIsNamed) {
  int aborts = 0;
  const std::string what = error_of_stuck_run(repetitions + 3, aborts, GraphMode::on);
  EXPECT_NE(what.find("lane compute is at `the graph of train`"), std::string::npos) << what;
  EXPECT_NE(what.find("lane gather has reached `gather`"), std::string::npos) << what;
  EXPECT_EQ(aborts, 1);
}

/// Work that lasts until then, and that somebody has looked at once after it: who watches has seen it last, however late the machine let
/// him look.
emulator::Work lasting_until(double end) {
  return [end, seen = false]() mutable { return now_seconds() > end && std::exchange(seen, true); };
}

// Also where nobody watches over collectives: a kernel that hangs on a single GPU.
TEST(StreamExecutor, ATaskThatTakesLongIsNamedInTheLog) {
  for (bool warm_up : {false, true}) {
    LaggingLanes lanes;
    bool slow = true;  // the first
    auto executor = lanes.executor(
        [&](const TaskRun& run) {
          const bool lasts = run.task.lane == Lane::compute && std::exchange(slow, false);
          emulator::enqueue(lanes.stream(run), lasting_until(lasts ? now_seconds() + 0.5 : 0));
        },
        {.say_after = 0.1});
    testing::internal::CaptureStderr();
    warm_up ? executor.warm_up(ProgramKind::train) : executor.run(ProgramKind::train);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("no task has ended for"), std::string::npos) << said;
    EXPECT_NE(said.find("lane compute is at `add`"), std::string::npos) << said;
    EXPECT_FALSE(slow);
  }
}

// A graph may take as long as a step does, and no longer.
TEST(StreamExecutor, AGraphThatTakesMuchLongerThanAStepIsNamedInTheLog) {
  LaggingLanes lanes;
  constexpr double patience = 4, first = 0.5;
  std::int64_t adds = 0;
  double seconds = first, longest = 0;  // of the task that lasts in this run; of the runs so far
  auto executor = lanes.executor(
      [&](const TaskRun& run) {
        if (run.task.lane != Lane::compute) return;
        // In each run one task lasts, of the second and third, which are the graph, the same.
        const bool lasts = ++adds == 3 || adds == repetitions + 3;
        emulator::enqueue(lanes.stream(run), [&seconds, lasts, begin = 0.0, seen = false]() mutable {
          if (lasts && begin == 0) begin = now_seconds();
          return now_seconds() > begin + (lasts ? seconds : 0) && (!lasts || std::exchange(seen, true));
        });
      },
      {.say_after = 0.05, .patience = patience}, GraphMode::on);
  const auto said_in_a_run = [&] {
    testing::internal::CaptureStderr();
    const double begin = now_seconds();
    executor.run(ProgramKind::train);
    longest = std::max(longest, now_seconds() - begin);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_NE(said_in_a_run().find("lane compute is at `add`"), std::string::npos);
  EXPECT_EQ(said_in_a_run().find("no task has ended"), std::string::npos) << "as long as the first";
  seconds = patience * longest + 0.5;
  const std::string said = said_in_a_run();
  EXPECT_NE(said.find("lane compute is at `the graph of train`"), std::string::npos) << said;
  EXPECT_NE(said.find("kernels.cuda_graph=\"off\""), std::string::npos) << said;
}

TEST(StreamExecutor, AKernelThatFailsInTheWarmUpIsNamed) {
  LaggingLanes lanes;
  auto executor = lanes.executor([&](const TaskRun& run) {
    emulator::enqueue(lanes.stream(run), [] { return fail(ExitCode::environment, "an illegal address"), false; });
  });
  try {
    executor.warm_up(ProgramKind::train);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "an illegal address (in task `add`)");
  }
}

TEST(StreamExecutor, AnErrorOfATaskGivesUpTheOthersToo) {
  LaggingLanes lanes;
  int aborts = 0;
  auto executor = lanes.executor([](const TaskRun& run) { fail(ExitCode::data, "{} broke", run.task.name); },
                                 {.check = [](double) {}, .abort = [&] { ++aborts; }});
  EXPECT_THROW(executor.run(ProgramKind::train), Error);
  EXPECT_EQ(aborts, 1);
}

}  // namespace
}  // namespace tessera
