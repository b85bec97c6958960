// Running programs: lanes on threads give what one thread gives, errors end all lanes, and nothing is allocated.
#include "schedule/run/executor.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#include "../sample.hpp"
#include "schedules.hpp"
#include "timelines.hpp"

namespace {
std::atomic<std::int64_t> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  void* memory = alignment > alignof(std::max_align_t) ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
                                                       : std::malloc(bytes ? bytes : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}
}  // namespace

// Every allocation of this program by new goes through here. Not inlined: the compiler would see free() of what new gave.
[[gnu::noinline]] void* operator new(std::size_t bytes) { return counted(bytes, 0); }
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return counted(bytes, 0); }
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t a) { return counted(bytes, static_cast<std::size_t>(a)); }
[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t a) { return counted(bytes, static_cast<std::size_t>(a)); }
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes, 0); }
[[gnu::noinline]] void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes, 0); }
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace tessera::executor_test {
namespace {

HostExecutor on_host(const Schedule& schedule, const MemoryPlan& plan, std::array<std::byte*, tier_count> bases, LaneMode mode,
                     TaskFunction run, LaneWatch watch = {}) {
  return HostExecutor({schedule, plan, bases, std::move(run)}, mode, std::move(watch));
}

/// Plain memory in the place of arenas.
struct Memory {
  std::array<std::vector<std::byte>, tier_count> tiers;
  explicit Memory(const MemoryPlan& plan) {
    for (std::size_t t = 0; t < tier_count; ++t) tiers[t].resize(static_cast<std::size_t>(plan.bytes[t]));
  }
  std::array<std::byte*, tier_count> bases() {
    std::array<std::byte*, tier_count> out{};
    for (std::size_t t = 0; t < tier_count; ++t) out[t] = tiers[t].data();
    return out;
  }
};

/// Stands for every task: what it writes becomes a mixture of its name and of all that it reads, so that a task that runs too early or too
/// late changes what is found in the end. Reads what it adds to.
void mix(const TaskRun& run) {
  std::uint64_t state = 1469598103934665603u;
  auto eat = [&](const void* data, std::int64_t bytes) {
    for (std::int64_t i = 0; i < bytes; i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, static_cast<const std::byte*>(data) + i, static_cast<std::size_t>(std::min<std::int64_t>(8, bytes - i)));
      state = (state ^ word) * 0x9e3779b97f4a7c15u;
      state ^= state >> 29;
    }
  };
  eat(run.task.name.data(), static_cast<std::int64_t>(run.task.name.size()));
  const auto& uses = run.task.uses;
  for (std::size_t i = 0; i < uses.size(); ++i)
    if (uses[i].access != Access::write) eat(run.at[i], uses[i].bytes);
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].access == Access::read) continue;
    for (std::int64_t b = 0; b < uses[i].bytes; b += 8) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::memcpy(static_cast<std::byte*>(run.at[i]) + b, &state, static_cast<std::size_t>(std::min<std::int64_t>(8, uses[i].bytes - b)));
    }
  }
}

std::vector<test::Setting> some_settings() {
  std::vector<test::Setting> some;
  for (const auto& s : test::settings())
    if (s.ranks == 1 || s.ranks == 3 || s.name.find("stage3") == 0) some.push_back(s);
  for (auto& s : some)
    s.overrides.insert(s.overrides.end(), {"model.width=16", "model.ff_width=24", "model.vocab=31", "batch.sequence_length=6"});
  return some;
}

class Run : public testing::TestWithParam<test::Setting> {};

TEST_P(Run, ThreadsGiveWhatOneThreadGives) {
  if (!test::Sample::takes(GetParam().name, 3)) return;
  SCOPED_TRACE(test::Sample::describe());
  const Schedule schedule = test::schedule_of(GetParam());
  const MemoryPlan plan = place(schedule);
  Memory one(plan), many(plan);
  HostExecutor inline_executor = on_host(schedule, plan, one.bases(), LaneMode::inline_order, mix);
  HostExecutor threads = on_host(schedule, plan, many.bases(), LaneMode::threads, [](const TaskRun& run) {
    // Some tasks dawdle, and others with each run, so that lanes come to meet in many ways.
    static std::atomic<unsigned> counter{0};
    if (counter++ % 5 == 0) std::this_thread::yield();
    mix(run);
  });
  for (ProgramKind kind : {ProgramKind::publish, ProgramKind::first, ProgramKind::train, ProgramKind::update, ProgramKind::evaluate,
                           ProgramKind::train, ProgramKind::prompt, ProgramKind::token}) {
    inline_executor.run(kind);
    threads.run(kind);
    for (std::size_t t = 0; t < tier_count; ++t) ASSERT_EQ(one.tiers[t], many.tiers[t]) << "tier " << t;
  }
}

TEST_P(Run, TimelinesAreTrueToTheProgram) {
  if (!test::Sample::takes("traced " + GetParam().name, 3)) return;
  SCOPED_TRACE(test::Sample::describe());
  const Schedule schedule = test::schedule_of(GetParam());
  const MemoryPlan plan = place(schedule);
  for (LaneMode mode : {LaneMode::inline_order, LaneMode::threads}) {
    Memory traced(plan), plain(plan);
    HostExecutor executor = on_host(schedule, plan, traced.bases(), mode, mix), other = on_host(schedule, plan, plain.bases(), mode, mix);
    for (ProgramKind kind : {ProgramKind::publish, ProgramKind::first, ProgramKind::train, ProgramKind::update, ProgramKind::evaluate,
                             ProgramKind::prompt, ProgramKind::token}) {
      test::expect_true_to(executor.run_traced(kind), schedule, plan, kind);
      other.run(kind);
    }
    for (std::size_t t = 0; t < tier_count; ++t) ASSERT_EQ(traced.tiers[t], plain.tiers[t]) << "tier " << t;
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, Run, testing::ValuesIn(some_settings()), [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Tensor, Run, testing::Values(test::tensor_settings()[8], test::tensor_settings()[23]),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Context, Run,
                         testing::Values(test::context_settings()[0], test::context_settings()[31], test::context_settings()[48],
                                         test::context_settings()[63]),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Experts, Run, testing::Values(test::expert_settings()[0], test::expert_settings()[29]),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Pipeline, Run,
                         testing::Values(test::pipeline_settings()[0], test::pipeline_settings()[10], test::pipeline_settings()[19],
                                         test::ordered_settings()[20], test::ordered_settings()[39]),
                         [](const auto& info) { return info.param.name; });

/// begin (compute), body x 4 (gather writes, compute adds up micro-batches, reduce copies out), end (compute).
Schedule toy() {
  Schedule s;
  s.buffers = {{"numbers", Category::inputs, Tier::host, 6 * 8, Life::run, 6},
               {"sum", Category::scalars, Tier::host, 8, Life::run},
               {"copies", Category::scalars, Tier::shared, 8, Life::run},
               {"gathered", Category::gathered, Tier::shared, 8}};
  const Use number{0, 0, 8, Access::read, true};
  auto body = [&](const std::string& name) {
    return Section{name,
                   {{.name = "gather", .op = Zero{}, .lane = Lane::gather, .uses = {{3, 0, 8, Access::write}}},
                    {.name = "add", .op = Zero{}, .lane = Lane::compute, .uses = {{1, 0, 8, Access::add}, number, {3, 0, 8, Access::read}}},
                    {.name = "reduce", .op = Zero{}, .lane = Lane::reduce, .uses = {{2, 0, 8, Access::add}, {1, 0, 8, Access::read}}}}};
  };
  s.sections = {{"begin", {{.name = "clear", .op = Zero{}, .uses = {{1, 0, 8, Access::write}, {2, 0, 8, Access::write}}}}},
                body("first"),
                body("middle"),
                body("last"),
                {"end", {{.name = "double", .op = Zero{}, .uses = {{1, 0, 8, Access::add}, {2, 0, 8, Access::read}}}}}};
  s.program(ProgramKind::train).phases = {{0, 1}, {1, 1, 0}, {2, 4, 1}, {3, 1, 5}, {4, 1}};
  return s;
}

std::int64_t& number(const TaskRun& run, std::size_t i) { return *static_cast<std::int64_t*>(run.at[i]); }

void run_toy(const TaskRun& run) {
  switch (run.task.name[0]) {
    case 'c':
      number(run, 0) = number(run, 1) = 0;
      return;
    case 'g':
      number(run, 0) = 100;
      return;
    case 'a':
      number(run, 0) += number(run, 1) + number(run, 2);
      return;
    case 'r':
      number(run, 0) += number(run, 1);
      return;
    default:
      number(run, 0) = 2 * number(run, 0) + number(run, 1);
  }
}

class InEachMode : public testing::TestWithParam<LaneMode> {
 protected:
  Schedule schedule_ = toy();
  MemoryPlan plan_ = place(schedule_);
  Memory memory_{plan_};
  std::int64_t at(int buffer) {
    const auto b = static_cast<std::size_t>(buffer);
    std::int64_t value;
    std::memcpy(&value, memory_.tiers[static_cast<std::size_t>(schedule_.buffers[b].tier)].data() + plan_.offset[b], 8);
    return value;
  }
  void set_numbers() {
    for (std::int64_t i = 0; i < 6; ++i) {
      const std::int64_t value = i == 0 ? 1 : 10 * i;
      std::memcpy(memory_.tiers[static_cast<std::size_t>(Tier::host)].data() + plan_.offset[0] + 8 * i, &value, 8);
    }
  }
};

TEST_P(InEachMode, EveryRepetitionSeesItsMicroBatchInEveryRun) {
  set_numbers();
  HostExecutor executor = on_host(schedule_, plan_, memory_.bases(), GetParam(), run_toy);
  // Sums after each micro-batch: 101, 211, 331, 461, 601, 751; in all 2456.
  for (int i = 0; i < 200; ++i) {
    executor.run(ProgramKind::train);
    ASSERT_EQ(at(2), 2456) << "run " << i;
    ASSERT_EQ(at(1), 2 * 751 + 2456) << "run " << i;
  }
}

TEST_P(InEachMode, AProgramWithoutPhasesDoesNothing) {
  HostExecutor executor = on_host(schedule_, plan_, memory_.bases(), GetParam(), [](const TaskRun&) { FAIL(); });
  executor.run(ProgramKind::evaluate);
}

TEST_P(InEachMode, AnErrorOfAnyLaneEndsAllAndIsTheOneThrown) {
  set_numbers();
  for (const char* name : {"gather", "add", "reduce", "clear", "double"})
    for (int after : {0, 3}) {
      if (after > 0 && (name[0] == 'c' || name[0] == 'd')) continue;
      std::atomic<int> calls{0}, countdown{after};
      std::atomic<bool> armed{true};
      HostExecutor executor = on_host(schedule_, plan_, memory_.bases(), GetParam(), [&](const TaskRun& run) {
        ++calls;
        if (armed && run.task.name == name && countdown-- == 0) fail(ExitCode::data, "{} broke", name);
        run_toy(run);
      });
      try {
        executor.run(ProgramKind::train);
        FAIL() << name;
      } catch (const Error& e) {
        EXPECT_EQ(std::string(e.what()).find(std::string(name) + " broke"), 0u) << e.what();
      }
      if (name[0] != 'd') {
        EXPECT_LT(calls, 20) << "lanes went on after the error";
      }
      // The executor is as good as before.
      armed = false;
      executor.run(ProgramKind::train);
      EXPECT_EQ(at(2), 2456) << "after an error in " << name;
    }
}

TEST_P(InEachMode, TheFirstOfTwoErrorsIsKept) {
  HostExecutor executor = on_host(schedule_, plan_, memory_.bases(), GetParam(), [&](const TaskRun& run) {
    if (run.task.name == "gather") throw std::runtime_error("first");
    if (run.task.name == "add") throw std::runtime_error("second");
    run_toy(run);
  });
  try {
    executor.run(ProgramKind::train);
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "first");
  }
}

TEST_P(InEachMode, RunningAllocatesNothing) {
  HostExecutor executor = on_host(schedule_, plan_, memory_.bases(), GetParam(), run_toy);
  executor.run(ProgramKind::train);
  const std::int64_t before = allocations;
  for (int i = 0; i < 50; ++i) executor.run(ProgramKind::train);
  EXPECT_EQ(allocations - before, 0);
  // Of a timeline only the toy's three lanes themselves: none for each task.
  executor.run_traced(ProgramKind::train);
  EXPECT_EQ(allocations - before, 3);
}

TEST_P(InEachMode, ATimelineKnowsMicroBatchesAndHowLongTasksTook) {
  set_numbers();
  HostExecutor executor = on_host(schedule_, plan_, memory_.bases(), GetParam(), [](const TaskRun& run) {
    if (run.task.name == "add") std::this_thread::sleep_for(std::chrono::milliseconds(2));
    run_toy(run);
  });
  executor.run(ProgramKind::train);
  const Timeline timeline = executor.run_traced(ProgramKind::train);
  test::expect_true_to(timeline, schedule_, plan_, ProgramKind::train);
  EXPECT_EQ(at(2), 2456) << "a run that is traced does what others do";
  std::vector<std::optional<std::int64_t>> micro_batches;
  for (const TaskTime& task : timeline.lanes[0]) micro_batches.push_back(task.micro_batch);
  EXPECT_EQ(micro_batches, (std::vector<std::optional<std::int64_t>>{{}, 0, 1, 2, 3, 4, 5, {}}));
  for (const TaskTime& task : timeline.lanes[0])
    if (task.task->name == "add") {
      EXPECT_GE(task.end - task.begin, 2e-3);
    }
  EXPECT_GE(timeline.seconds, 12e-3);
  EXPECT_FALSE(timeline.graph);
}

TEST_P(InEachMode, ARunAfterOneThatFailedWhileTracedIsNotTraced) {
  set_numbers();
  bool broken = true;
  HostExecutor executor = on_host(schedule_, plan_, memory_.bases(), GetParam(), [&](const TaskRun& run) {
    if (broken && run.task.name == "double") fail(ExitCode::data, "broken");
    run_toy(run);
  });
  EXPECT_THROW(executor.run_traced(ProgramKind::train), Error);
  broken = false;
  executor.run(ProgramKind::train);
  const std::int64_t before = allocations;
  executor.run(ProgramKind::train);
  EXPECT_EQ(allocations - before, 0) << "nobody asked for a timeline";
  test::expect_true_to(executor.run_traced(ProgramKind::train), schedule_, plan_, ProgramKind::train);
}

TEST_P(InEachMode, TimesCountEveryLane) {
  HostExecutor executor = on_host(schedule_, plan_, memory_.bases(), GetParam(), [](const TaskRun& run) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    run_toy(run);
  });
  executor.run(ProgramKind::train);
  for (const Lane lane : {Lane::compute, Lane::gather, Lane::reduce})
    EXPECT_GE(executor.times().busy[static_cast<std::size_t>(lane)], 6e-3) << name_of(lane);
}

TEST_P(InEachMode, AnErrorNamesItsTask) {
  HostExecutor executor = on_host(schedule_, plan_, memory_.bases(), GetParam(), [&](const TaskRun& run) {
    if (run.task.name == "double") fail(ExitCode::storage, "broken");
    run_toy(run);
  });
  try {
    executor.run(ProgramKind::train);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::storage);
    EXPECT_STREQ(error.what(), "broken (in task `double`)");
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, InEachMode, testing::Values(LaneMode::inline_order, LaneMode::threads),
                         [](const auto& info) { return info.param == LaneMode::threads ? "threads" : "inline"; });

TEST(Executor, LanesOverlapWhereNothingForbidsIt) {
  // The reduce lane's task waits until the compute lane has gone on: on one thread in list order this would never end.
  Schedule s = toy();
  s.sections = {{"both",
                 {{.name = "reduce", .op = Zero{}, .lane = Lane::reduce, .uses = {{2, 0, 8, Access::write}}},
                  {.name = "add", .op = Zero{}, .lane = Lane::compute, .uses = {{1, 0, 8, Access::write}}}}}};
  s.program(ProgramKind::train).phases = {{0, 1}};
  const MemoryPlan plan = place(s);
  Memory memory(plan);
  std::atomic<bool> added{false};
  HostExecutor executor = on_host(s, plan, memory.bases(), LaneMode::threads, [&](const TaskRun& run) {
    if (run.task.name == "add") {
      added = true;
      added.notify_all();
    } else {
      added.wait(false);
    }
  });
  executor.run(ProgramKind::train);
  EXPECT_TRUE(added);
}

TEST(Executor, ALaneThatFailsEndsWhatTheOthersWaitFor) {
  // The gather lane is inside a collective that its peers will never come to: only being told ends it.
  const Schedule s = toy();
  const MemoryPlan plan = place(s);
  Memory memory(plan);
  std::atomic<bool> inside{false}, told{false};
  std::atomic<int> times_told{0};
  HostExecutor executor = on_host(s, plan, memory.bases(), LaneMode::threads,
                                  [&](const TaskRun& run) {
                                    if (run.task.name == "gather") {
                                      inside = true;
                                      inside.notify_all();
                                      told.wait(false);
                                      fail(ExitCode::lost, "given up");
                                    }
                                    if (run.task.name == "clear") {
                                      inside.wait(false);
                                      fail(ExitCode::data, "the first cause");
                                    }
                                  },
                                  {.abort = [&] {
                                    ++times_told;
                                    told = true;
                                    told.notify_all();
                                  }});
  try {
    executor.run(ProgramKind::train);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::data) << error.what();
  }
  EXPECT_EQ(times_told, 1);
}

}  // namespace
}  // namespace tessera::executor_test
