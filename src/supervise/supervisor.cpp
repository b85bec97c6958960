#include "supervise/supervisor.hpp"

#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/end_report.hpp"
#include "base/log.hpp"
#include "base/own_files.hpp"
#include "base/regular_file.hpp"
#include "supervise/child.hpp"
#include "supervise/node_probes.hpp"
#include "supervise/record.hpp"
#include "supervise/run_tail.hpp"
#include "supervise/words.hpp"
#include "topology/failure/signals.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr double ask_again_seconds = 10;  // a launcher drops a signal to ranks that it is still starting
constexpr double report_look_seconds = 0.2, leave_seconds = 1.7, after_signal_seconds = 0.5;
constexpr double ask_ahead_seconds = 0.7;  // before that the end of ranks is under way, and Slurm would end them later for it
constexpr std::size_t nodes_beside = 4;

std::vector<std::string> first_of(const std::vector<std::string>& names, std::size_t most) {
  return {names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(most, names.size()))};
}

void write_file(const std::string& path, int file, const std::string& text) {
  const bool written = file >= 0 && write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  if ((file < 0 || close(file) == 0) && written) return;
  fail(ExitCode::storage, "cannot write {}: {}", path, std::strerror(error));
}

/// The record beside the run: held by one supervisor at a time, and appended to.
class StartsRecord {
 public:
  explicit StartsRecord(std::string path) : path_(std::move(path)), file_(update_file(path_.c_str())) {
    if (file_ < 0) fail(ExitCode::environment, "cannot write the record of starts {}: {}", path_, std::strerror(errno));
    if (flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      close(file_);
      fail(ExitCode::environment, "another tessera supervise starts this run (it holds {}): end that one first", path_);
    }
    lseek(file_, 0, SEEK_END);
  }
  ~StartsRecord() { close(file_); }
  StartsRecord(const StartsRecord&) = delete;
  StartsRecord& operator=(const StartsRecord&) = delete;
  void note(const std::string& words) const {
    const std::string line = record_line(words);
    if (write(file_, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      warning("supervise: cannot write {}: {}", path_, std::strerror(errno));
  }

 private:
  std::string path_;
  int file_;
};

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string prepare_folder(const std::string& output_dir) {
  const std::string base = without_slash(output_dir);
  std::error_code error;
  if (const fs::path above = fs::path(base).parent_path(); !above.empty()) fs::create_directories(above, error);
  return base;
}

class RunSupervisor {
 public:
  explicit RunSupervisor(const SupervisedRun& run)
      : run_(run), base_(prepare_folder(run.output_dir)), record_(base_ + ".ends"), places_(run.first.places) {
    remove_leftovers();
    report_ = fs::absolute(fmt::format("{}.status-{}", base_, getpid())).string();
    hosts_ = fs::absolute(fmt::format("{}.hosts-{}", base_, getpid())).string();
    std::signal(SIGPIPE, SIG_IGN);  // a run outlives who reads its log
  }
  ~RunSupervisor() { unlink(hosts_.c_str()), remove_report(); }
  RunSupervisor(const RunSupervisor&) = delete;
  RunSupervisor& operator=(const RunSupervisor&) = delete;

  int go() {
    while (true) {
      begin_start();
      end_start();
      const Decision next = follow();
      if (next.status) return finish(next);
      places_ = next.places;
      const double until = now_seconds() + next.pause_seconds;
      while (!asked_ && now_seconds() < until) take_signals(until - now_seconds());
      if (asked_)
        return finish({.status = static_cast<int>(ExitCode::interrupted), .words = "supervise was asked to stop between two starts"});
    }
  }

 private:
  void say(const std::string& words) const { info("supervise: {}", words); }

  /// What supervisors that were killed have left; the record says that none of them is at work.
  void remove_leftovers() const {
    const fs::path base(base_);
    const std::string name = base.filename().string();
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(base.has_parent_path() ? base.parent_path() : fs::path("."), error))
      for (const char* kind : {".status-", ".hosts-"})
        if (entry.path().filename().string().starts_with(name + kind)) unlink(entry.path().c_str());
  }
  void remove_report() const { unlink(report_.c_str()), unlink((report_ + ".saved").c_str()); }

  /// Takes what has come, after at most so many seconds.
  void take_signals(double seconds, const std::vector<int>& others = {}) {
    signals_.wait(seconds, others);
    while (const auto number = signals_.next()) {
      interrupts_ += *number == SIGINT ? 1 : 0;
      if (!asked_) say(fmt::format("{}: the ranks save their state and end", signal_name(*number)));
      asked_ = true;
    }
  }

  /// Nodes on which a process does not end well in time. Some others are asked beside them, so that it is known how long an answer takes.
  std::vector<std::string> silent_of(const std::vector<std::string>& nodes) {
    probes_.ask(nodes);
    probes_.ask(first_of(places_.nodes, nodes_beside));
    while (true) {
      if (const auto silent = probes_.silent(nodes)) return *silent;
      take_signals(0.05);
    }
  }

  /// Asks what follow() will want to know, beside ranks that do not end.
  void ask_ahead() {
    if (places_.nodes.empty()) return;
    const std::optional<LostPlace> lost = words_.lost();
    const bool named = lost && std::find(places_.nodes.begin(), places_.nodes.end(), lost->node) != places_.nodes.end();
    probes_.ask(named ? std::vector<std::string>{lost->node} : places_.nodes);
    probes_.ask(first_of(places_.nodes, nodes_beside));
    probes_.ask(first_of(places_.spares, 1));
  }

  /// Ranks that have told of a loss, and their launcher, which has not ended.
  struct Leaving {
    double since = 0;          ///< 0: none
    bool nodes_asked = false;  ///< whether they answer
    bool asked = false;        ///< the launcher, to end
  };

  /// The environment of ranks and probes: a job's own words on tasks do not hold for another number of nodes.
  std::vector<std::pair<std::string, std::string>> own_variables(bool ranks) const {
    std::vector<std::pair<std::string, std::string>> variables{{"TESSERA_STATUS_FILE", ranks ? report_ : ""}};
    if (run_.first.launcher.way != LaunchWay::slurm) return variables;
    for (const char* name : {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NNODES",
                             "SLURM_JOB_NUM_NODES", "SLURM_DISTRIBUTION"})
      variables.emplace_back(name, "");
    variables.emplace_back("SLURM_HOSTFILE", ranks ? hosts_ : "");
    return variables;
  }

  void begin_start() {
    remove_report(), probes_.forget();
    starts_.push_back({.number = static_cast<int>(starts_.size()) + 1, .places = places_});
    if (!places_.nodes.empty()) write_file(hosts_, create_file(hosts_.c_str()), host_lines(places_));
    words_ = {};
    launched_ = now_seconds(), launched_at_ = unix_seconds();
    if (starts_.size() > 1) starts_[starts_.size() - 2].to_start = launched_ - ended_;
    say(fmt::format("start {}: {} rank{}{}", starts_.size(), places_.ranks, places_.ranks == 1 ? "" : "s",
                    places_.nodes.empty() ? "" : fmt::format(" on {} node{}", places_.nodes.size(), places_.nodes.size() == 1 ? "" : "s")));
  }

  /// Runs the ranks; sets launcher_status_.
  void run_ranks() {
    std::vector<std::string> program = run_.program;
    if (starts_.size() > 1) program.insert(program.end(), run_.to_go_on.begin(), run_.to_go_on.end());
    LauncherProcess ranks(launch_words(run_.first.launcher, places_, hosts_, report_, program), own_variables(true), true);
    const auto hear = [this](std::string_view line) { this->hear(line); };
    double ask_at = 0, look_at = now_seconds() + report_look_seconds;
    Leaving leaving;
    while (!ranks.status()) {
      const int interrupts_before = interrupts_;
      take_signals(std::max(0.0, look_at - now_seconds()), ranks.pipes());
      ranks.pass_on(hear);
      probes_.look();  // each answer is a signal, which ends the wait
      if (now_seconds() >= look_at) end_what_is_left(ranks, leaving), look_at = now_seconds() + report_look_seconds;
      if (asked_ && now_seconds() >= ask_at) ranks.signal(SIGUSR1), ask_at = now_seconds() + ask_again_seconds;
      if (interrupts_ > interrupts_before && interrupts_ > 1) end_at_once(ranks);
    }
    ended_ = now_seconds();
    ranks.pass_on(hear);
    launcher_status_ = *ranks.status();
  }

  /// Ranks that lost another leave within a second or two. A launcher waits longer for those that it can no longer hear of, on a node that
  /// is gone.
  void end_what_is_left(LauncherProcess& ranks, Leaving& leaving) {
    if (leaving.since == 0) {
      if (read_end_of(report_).status == static_cast<int>(ExitCode::lost)) leaving.since = now_seconds();
    } else if (!leaving.nodes_asked && now_seconds() - leaving.since > ask_ahead_seconds) {
      leaving.nodes_asked = true, ask_ahead();
    } else if (!leaving.asked && now_seconds() - leaving.since > leave_seconds) {
      ranks.signal(SIGTERM), leaving = {.since = now_seconds(), .nodes_asked = true, .asked = true};
    } else if (leaving.asked && now_seconds() - leaving.since > after_signal_seconds) {
      ranks.kill_group();
    }
  }

  /// A second Ctrl-C. srun alone ends its step, and by two of them.
  void end_at_once(LauncherProcess& ranks) const {
    say("SIGINT again: the ranks end at once, unsaved");
    for (int i = 0; i < 2 && run_.first.launcher.way == LaunchWay::slurm; ++i) ranks.signal(SIGINT), usleep(100000);
    if (run_.first.launcher.way != LaunchWay::slurm) ranks.kill_group();
  }

  void hear(std::string_view line) {
    const bool before = words_.stepped();
    words_.hear(line);
    if (before || !words_.stepped() || starts_.size() < 2) return;
    SupervisedStart& lost = starts_[starts_.size() - 2];
    lost.to_step = now_seconds() - launched_;
    lost.steps_again = steps_again(base_, launched_at_);
    say(fmt::format("start {} is running: {}{:.2f} s to start again, {:.2f} s to the first step{}", starts_.size(),
                    lost.since_step ? fmt::format("{:.2f} s from the last step to the end of the ranks, ", *lost.since_step) : "",
                    lost.to_start.value_or(0), *lost.to_step,
                    lost.steps_again ? fmt::format("; {} step{} repeated", *lost.steps_again, *lost.steps_again == 1 ? "" : "s") : ""));
  }

  void end_start() {
    StartEnd end;
    try {
      run_ranks();
      look_again(report_);
      const ReportedEnd reported = read_end_of(report_);
      end.copied = reported.copied;
      end.status = cause_of_end(reported, launcher_status_, run_.first.launcher.way == LaunchWay::slurm, asked_);
      end.saved = reported.saved;
      if (!reported.status) say(words_of_no_report(words_.lost(), launcher_status_));
    } catch (const Error& error) {
      log_line(LogLevel::error, error.what());
      end.status = static_cast<int>(error.code);
      ended_ = now_seconds();
    }
    remove_report();
    end.stepped = words_.stepped(), end.asked = asked_;
    if (end.status == static_cast<int>(ExitCode::lost)) end.lost = words_.lost();
    SupervisedStart& start = starts_.back();
    start.end = end;
    if (const auto last = last_step(base_); last && last->time > launched_at_)
      start.since_step = std::max(0.0, unix_seconds() - last->time);
    if (end.saved) note_saved(*end.saved, true);  // for a job script that goes by this program's own report
    ends_.push_back(end);
    record_.note(words_of_end(start));
    if (const std::string lost = words_of_loss(start); !lost.empty()) record_.note(lost);
    write_json(end.status);
  }

  Decision follow() {
    const Questions ask{.silent = [this](const std::vector<std::string>& nodes) { return silent_of(nodes); }, .fits = run_.fits};
    Decision next = decide(run_.rules, places_, ends_, ask);
    for (const std::string& node : next.left_out) record_.note("left out " + node);
    if (!next.status)
      say(fmt::format(
          "{}; it starts again {}", next.words,
          next.pause_seconds > 0 ? fmt::format("in {:g} s, because the last start made no step", next.pause_seconds) : "at once"));
    return next;
  }

  int finish(const Decision& end) {
    if (end.given_up) record_.note(fmt::format("given up: status {}", *end.status));
    if (*end.status == 0 || *end.status == static_cast<int>(ExitCode::interrupted))
      say(end.words);
    else
      log_line(LogLevel::error, fmt::format("supervise: {} (status {})", end.words, *end.status));
    write_json(*end.status);
    put("{}", print_starts(starts_));
    return *end.status;
  }

  void write_json(int status) const {
    if (run_.json.empty()) return;
    write_file(run_.json, open_output(run_.json.c_str()), starts_json(starts_, status).dump(2, BadText::replace) + "\n");
  }

  const SupervisedRun& run_;
  std::string base_, report_, hosts_;
  PolledSignals signals_;
  StartsRecord record_;
  RankPlaces places_;
  NodeProbes probes_{[this](const std::string& node) {
                       return std::make_unique<LauncherProcess>(probe_words(run_.first.launcher, node), own_variables(false), false);
                     },
                     run_.probe_seconds};
  std::vector<SupervisedStart> starts_;
  std::vector<StartEnd> ends_;
  RankWords words_;
  double launched_ = 0, launched_at_ = 0, ended_ = 0;  // on the steady clock, by the wall's, on the steady one
  int launcher_status_ = 0, interrupts_ = 0;
  bool asked_ = false;
};

}  // namespace

int supervise(const SupervisedRun& run) { return RunSupervisor(run).go(); }

}  // namespace tessera
