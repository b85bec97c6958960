#include "train/observe/step_trace.hpp"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <sstream>
#include <utility>

#include "base/clock.hpp"
#include "base/json.hpp"
#include "base/log.hpp"
#include "io/files/posix_file.hpp"
#include "schedule/simulate/prediction.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// Steps whose median stands for a step that is not traced.
constexpr std::size_t most_before = 50;
/// Of each start: the first does what is done once, and on a GPU the second becomes a graph.
constexpr std::int64_t unlike_others = 2;
/// Of the joined file, which is to open in a browser.
constexpr int most_joined_ranks = 256;
constexpr std::int64_t most_trace_bytes = std::int64_t{4} << 30;  ///< of a rank and step

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) io::fail_storage("make the folder", path, error.value());
}

void write(const std::string& path, const std::string& text) {
  io::AtomicFile out(path);
  out.file().write(0, text.data(), text.size());
  out.commit();
}

std::string file_of(const std::string& folder, int rank) { return fmt::format("{}/rank-{:04}.json", folder, rank); }

/// When, by this rank's clock, the first rank began the step that this one began at `begun`. Ranks of a node share a clock; those of
/// several leave a barrier together, as nearly as the network lets them. Collective.
double common_zero(const World& world, double begun) {
  world.barrier();
  const double met = now_seconds();
  std::map<int, double> met_on;  // by node: of its first rank
  double earliest = std::numeric_limits<double>::infinity();
  for (const std::string& text : world.gather_text(fmt::format("{} {} {}", world.place().node, met, begun))) {
    std::istringstream in(text);
    int node = 0;
    double its_met = 0, its_begun = 0;
    in >> node >> its_met >> its_begun;
    earliest = std::min(earliest, its_begun - met_on.emplace(node, its_met).first->second);
  }
  return met_on.at(world.place().node) + earliest;
}

}  // namespace

StepTrace::StepTrace(const RunParts& run, ProgressLog& progress)
    : run_(run), progress_(progress), range_(step_range(run.deck.run.trace).value()) {
  if (range_.last > 0 && range_.last <= run.first_step)
    info("run.trace = {}: those steps are done already; this run continues after step {} and traces none", run.deck.run.trace,
         run.first_step);
  else if (range_.last > 0 && range_.first <= run.first_step)
    info("run.trace = {}: this run continues after step {} and traces from step {} on", run.deck.run.trace, run.first_step,
         run.first_step + 1);
  if (run.deck.run.machine.empty() || range_.last <= run.first_step) return;
  run.world.together([&] {
    if (run.world.rank() != 0) return;
    machine_ = machine_of_run(run.deck);
    predict_here();
  });
}

void StepTrace::predict_here() {
  const RunPlan& plan = run_.engine.planned();
  const Placement placement{
      .mesh = plan.request.mesh, .ranks_per_node = run_.world.place().local_ranks, .lanes_side_by_side = run_.lanes == LaneMode::threads};
  const Prediction prediction = predict(plan.request, plan.schedule, plan.memory, *machine_, placement, true);
  predicted_ = chrome_trace(prediction.step.timeline, {},
                            {.step = range_.first, .rank = 0, .ranks = run_.world.ranks(), .device = machine_->name, .predicted = true});
  predicted_phase_ = run_.engine.phase();
}

Verdict StepTrace::after(const StepEnd& end) {
  if (end.done < range_.first && end.done > run_.first_step + unlike_others) {
    if (before_.size() == most_before) before_.erase(before_.begin());
    before_.push_back(end.figures.seconds);
  }
  if (!range_.holds(end.done)) return Verdict::go_on;
  if (!zero_) {
    zero_ = common_zero(run_.world, end.timeline->begun);
    if (machine_ && predicted_phase_ != run_.engine.phase()) predict_here();
  }
  write_traces(*end.timeline, end.done);
  if (end.done == range_.last) join();
  return Verdict::go_on;
}

void StepTrace::finish(std::int64_t) {
  if (!steps_.empty()) join();
}

void StepTrace::write_traces(const Timeline& timeline, std::int64_t step) {
  const World& world = run_.world;
  const std::string folder = run_.folder.trace(step);
  world.together([&] {
    if (world.rank() != 0) return;
    std::error_code ignored;          // what cannot be removed is written over
    fs::remove_all(folder, ignored);  // an earlier trace may be of more ranks
  });
  const UntracedRuns untraced = steps_before();
  const TracedStep traced{.step = step, .begin = timeline.begun - *zero_, .seconds = timeline.seconds};
  world.together([&] {
    make_folder(folder);
    write(file_of(folder, world.rank()), chrome_trace(timeline, untraced,
                                                      {.step = step,
                                                       .rank = world.rank(),
                                                       .ranks = world.ranks(),
                                                       .device = std::string(word_of(run_.deck.run.device)),
                                                       .begin = traced.begin}));
  });
  steps_.push_back(traced);
  const TimelineSummary summary = summarise(timeline);
  progress_.note(fmt::format("timeline of step {} on rank 0, in {}:{}", step, file_of(folder, 0), print_summary(summary, untraced)));
}

void StepTrace::join() {
  const std::int64_t first = steps_.front().step, last = steps_.back().step;
  const std::string path = run_.folder.joined_trace(first, last);
  const int ranks = std::min(run_.world.ranks(), most_joined_ranks);
  run_.world.together([&] {
    if (run_.world.rank() != 0) return;
    io::AtomicFile out(path);
    std::int64_t at = 0;
    std::size_t step = 0;
    int rank = 0;
    bool predicts = !predicted_.empty();
    join_traces([&](std::string_view text) { out.file().write(at, text.data(), text.size()), at += std::ssize(text); },
                [&]() -> std::optional<std::string> {
                  if (std::exchange(predicts, false)) return predicted_;
                  if (step == steps_.size()) return std::nullopt;
                  const std::string file = file_of(run_.folder.trace(steps_[step].step), rank);
                  if (++rank == ranks) rank = 0, ++step;
                  return io::read_small_file(file, ExitCode::storage, most_trace_bytes);
                },
                steps_, Json{{"first_step", first}, {"last_step", last}, {"ranks", ranks}, {"machine", run_.deck.run.machine}}.dump(1));
    out.commit();
  });
  progress_.note(fmt::format("timelines of {} of {}{} in one file, on one clock: {}",
                             first == last ? fmt::format("step {}", first) : fmt::format("steps {} to {}", first, last),
                             ranks == run_.world.ranks() ? fmt::format("all {} ranks", ranks) : fmt::format("ranks 0 to {}", ranks - 1),
                             predicted_.empty() ? "" : fmt::format(", and the prediction for rank 0 on {},", run_.deck.run.machine), path));
  steps_.clear();
}

UntracedRuns StepTrace::steps_before() const {
  if (before_.empty()) return {};
  std::vector<double> sorted = before_;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  return {.count = static_cast<std::int64_t>(n), .median_seconds = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2};
}

}  // namespace tessera
