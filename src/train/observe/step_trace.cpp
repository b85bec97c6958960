#include "train/observe/step_trace.hpp"

#include <algorithm>
#include <filesystem>

#include "base/log.hpp"
#include "io/files/posix_file.hpp"
#include "schedule/trace/chrome_trace.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// Steps whose median stands for a step that is not traced.
constexpr std::size_t most_before = 50;
/// Of each start: the first does what is done once, and on a GPU the second becomes a graph.
constexpr std::int64_t unlike_others = 2;

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

}  // namespace

StepTrace::StepTrace(const RunParts& run, ProgressLog& progress) : run_(run), progress_(progress), step_(run.deck.run.trace_step) {
  if (step_ > 0 && step_ <= run.first_step)
    info("run.trace_step = {}: that step is done already, this run goes on after step {} and traces none", step_, run.first_step);
}

Verdict StepTrace::after(const StepEnd& end) {
  if (end.done < step_ && end.done > run_.first_step + unlike_others) {
    if (before_.size() == most_before) before_.erase(before_.begin());
    before_.push_back(end.figures.seconds);
  }
  if (end.done == step_) write_traces(*end.timeline);
  return Verdict::go_on;
}

void StepTrace::write_traces(const Timeline& timeline) {
  const World& world = run_.world;
  const std::string folder = run_.folder.trace(step_);
  world.together([&] {
    if (world.rank() != 0) return;
    std::error_code ignored;          // what cannot be removed is written over
    fs::remove_all(folder, ignored);  // an earlier trace may be of more ranks
  });
  const UntracedRuns untraced = steps_before();
  auto file_of = [&](int rank) { return fmt::format("{}/rank-{:04}.json", folder, rank); };
  world.together([&] {
    make_folder(folder);
    write(
        file_of(world.rank()),
        chrome_trace(timeline, untraced,
                     {.step = step_, .rank = world.rank(), .ranks = world.ranks(), .device = std::string(word_of(run_.deck.run.device))}));
  });
  const TimelineSummary summary = summarise(timeline);
  progress_.note(fmt::format("timeline of step {} on rank 0, in {}:{}", step_, file_of(0), print_summary(summary, untraced)));
}

UntracedRuns StepTrace::steps_before() const {
  if (before_.empty()) return {};
  std::vector<double> sorted = before_;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  return {.count = static_cast<std::int64_t>(n), .median_seconds = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2};
}

}  // namespace tessera
