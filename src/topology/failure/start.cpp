#include "topology/failure/start.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/check.hpp"
#include "base/end_report.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/own_files.hpp"
#include "base/regular_file.hpp"
#include "base/types.hpp"
#include "deck/environment.hpp"
#include "topology/failure/account.hpp"
#include "topology/failure/leave.hpp"
#include "topology/failure/patience.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr double start_look_seconds = 0.25, show_seconds = 1, say_again_seconds = 60, last_words_seconds = 1.5;
constexpr std::int64_t most_host_bytes = 4096;
constexpr std::chrono::seconds fresh{10};  // since a waiting rank last touched its file

int number_of(const std::optional<std::string>& text, int fallback) {
  int number = fallback;
  if (text) std::from_chars(text->data(), text->data() + text->size(), number);
  return number;
}

/// "n2.cluster" -> "n2"
std::string short_name(const std::string& host) { return host.substr(0, host.find('.')); }

std::string seconds_text(double seconds) { return fmt::format("{:.0f} s", seconds); }

}  // namespace

LauncherWord launch_of_environment() {
  LauncherWord launch;
  const auto first = [](std::initializer_list<const char*> names, int fallback) {
    for (const char* name : names)
      if (const auto value = environment(name)) return number_of(value, fallback);
    return fallback;
  };
  launch.rank = first({"PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID"}, 0);
  launch.ranks = first({"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS"}, 1);
  launch.nodes = environment("SLURM_STEP_NODELIST").value_or("");
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  launch.host = name;
  return launch;
}

void log_launch_identity() {
  if (log_knows_rank() || !launched_as_several()) return;
  const LauncherWord launch = launch_of_environment();
  log_identity(launch.rank, launch.ranks, launch.host);
}

bool launched_as_several() {
  for (const char* name : {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"})
    if (number_of(environment(name), 1) > 1) return true;
  return environment("SLURM_STEP_ID") && number_of(environment("SLURM_STEP_NUM_TASKS"), 1) > 1;
}

bool started_by_srun() {
  // What the mpiexecs of MPICH and of Open MPI give to their ranks.
  return environment("SLURM_STEP_ID") && !environment("HYDI_CONTROL_FD") && !environment("OMPI_MCA_orte_hnp_uri");
}

std::vector<std::string> expand_hosts(std::string_view list) {
  std::vector<std::string> hosts;
  while (!list.empty()) {
    const std::size_t open = list.find('['), comma = list.find(',');
    const std::size_t close = open < comma ? list.find(']', open) : std::string_view::npos;
    const std::size_t end = close == list.npos ? comma : list.find(',', close);
    const std::string_view name = list.substr(0, end);
    list.remove_prefix(end == list.npos ? list.size() : end + 1);
    if (close == list.npos || close > name.size()) {
      hosts.emplace_back(name);
      continue;
    }
    std::string_view ranges = name.substr(open + 1, close - open - 1);
    while (!ranges.empty()) {
      const std::size_t next = ranges.find(',');
      const std::string_view range = ranges.substr(0, next);
      ranges.remove_prefix(next == ranges.npos ? ranges.size() : next + 1);
      const std::size_t dash = std::min(range.find('-'), range.size());
      int from = 0, to = 0;
      std::from_chars(range.data(), range.data() + dash, from);
      if (dash == range.size())
        to = from;
      else
        std::from_chars(range.data() + dash + 1, range.data() + range.size(), to);
      for (int i = from; i <= to; ++i)  // as many digits as the first has
        hosts.push_back(fmt::format("{}{:0{}}{}", name.substr(0, open), i, dash, name.substr(close + 1)));
    }
  }
  return hosts;
}

std::string describe_missing(const LauncherWord& launch, const std::vector<Waiter>& come) {
  if (come.empty()) return fmt::format("of {} ranks not all have come; this is rank {} on {}", launch.ranks, launch.rank, launch.host);
  std::vector<std::string> hosts(static_cast<std::size_t>(launch.ranks));
  std::set<std::string> seen;
  std::vector<int> here, missing;
  for (const Waiter& waiter : come)
    if (waiter.rank >= 0 && waiter.rank < launch.ranks) hosts[static_cast<std::size_t>(waiter.rank)] = waiter.host;
  for (int r = 0; r < launch.ranks; ++r) {
    const std::string& host = hosts[static_cast<std::size_t>(r)];
    (host.empty() ? missing : here).push_back(r);
    if (!host.empty()) seen.insert(short_name(host));
  }
  if (missing.empty())
    return fmt::format("all {} ranks have come ({}), but MPI does not connect them", launch.ranks, name_ranks(here, hosts));
  std::vector<std::string> silent;
  for (const std::string& host : expand_hosts(launch.nodes))
    if (!seen.contains(short_name(host))) silent.push_back(host);
  std::string text = fmt::format("of {} ranks {} {} not come; {} {} here", launch.ranks, fmt::join(missing, ", "),
                                 missing.size() == 1 ? "has" : "have", name_ranks(here, hosts), here.size() == 1 ? "is" : "are");
  if (!silent.empty()) text += fmt::format("; nobody has come from {}", fmt::join(silent, ", "));
  return text;
}

std::string describe_scarcity(std::int64_t shared_free_bytes, std::int64_t files_allowed, std::int64_t files_open, int local_ranks) {
  constexpr std::int64_t shared_of_rank = std::int64_t{8} << 20, files_of_rank = 64;  // of UCX and MPICH, as seen, and some
  std::string text;
  if (shared_free_bytes >= 0 && shared_free_bytes < shared_of_rank * local_ranks)
    text += fmt::format(
        " /dev/shm has {} free, and MPI takes about {} of it for each rank of the node: enlarge it (docker run --shm-size=1g, mount -o "
        "remount,size=1g /dev/shm), or remove old files there.",
        human_bytes(static_cast<double>(shared_free_bytes)), human_bytes(static_cast<double>(shared_of_rank)));
  if (files_allowed >= 0 && files_allowed - files_open < files_of_rank)
    text += fmt::format(" This process may open {} files and has {} open, and MPI needs tens of them: raise the limit (ulimit -n 4096).",
                        files_allowed, files_open);
  return text;
}

namespace {

// The process's own: MPI starts once.
struct FailedStart {
  std::string words;
  int rank_socket = -1;
  struct sigaction before = {};
};
std::atomic<FailedStart*> g_start{nullptr};

/// In a handler, and at exit().
void explain_failed_start() {
  FailedStart* start = g_start.exchange(nullptr);
  if (!start) return;
  report_end(static_cast<int>(ExitCode::environment));
  if (write(STDERR_FILENO, start->words.data(), start->words.size()) < 0) return;  // there is nobody to tell
  drain_standard_error();
  tell_launcher(static_cast<int>(ExitCode::environment), start->rank_socket);
  _exit(static_cast<int>(ExitCode::environment));
}

/// abort() sends the signal to its own thread; one from elsewhere asks for this process's end.
void on_abort_in_start(int, siginfo_t* info, void*) {
  if (info->si_code == SI_TKILL && info->si_pid == getpid()) explain_failed_start();
  signal(SIGABRT, SIG_DFL);
  raise(SIGABRT);
}

std::int64_t free_shared_bytes() {
  struct statvfs s;
  if (statvfs("/dev/shm", &s) != 0) return -1;
  return static_cast<std::int64_t>(s.f_bavail) * static_cast<std::int64_t>(s.f_frsize);
}

}  // namespace

MpiStart::MpiStart() {
  const auto local = environment("MPI_LOCALNRANKS");
  rlimit files = {};
  std::error_code error;
  const std::int64_t open = std::distance(fs::directory_iterator("/proc/self/fd", error), fs::directory_iterator());
  const bool limited = getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY;
  const std::string scarce = describe_scarcity(free_shared_bytes(), limited && !error ? static_cast<std::int64_t>(files.rlim_cur) : -1,
                                               open, std::max(1, number_of(local, 1)));
  const LauncherWord launch = launch_of_environment();
  if (!scarce.empty()) warning("rank {} on {}: MPI may not start:{}", launch.rank, launch.host, scarce);
  auto* start = new FailedStart;  // for handlers: never freed under one
  start->rank_socket = launcher_socket();
  start->words = fmt::format(
      "tessera: rank {} on {}: error: MPI could not start; its own messages are above.{} Other causes are the network between the nodes, "
      "or an MPI that does not match the launcher.\n",
      launch.rank, launch.host, scarce);
  static const bool registered = std::atexit(explain_failed_start) == 0;
  (void)registered;
  struct sigaction action = {};
  action.sa_sigaction = on_abort_in_start;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGABRT, &action, &start->before);
  g_start.store(start);
}

MpiStart::~MpiStart() {
  if (FailedStart* start = g_start.exchange(nullptr)) {
    sigaction(SIGABRT, &start->before, nullptr);
    delete start;
  }
}

StartWatch::StartWatch(StartOptions options) : options_(std::move(options)), launch_(launch_of_environment()) {
  if (!options_.run_folder.empty()) {
    std::error_code error;
    fs::path above = fs::absolute(options_.run_folder, error);
    const std::string digest = hash_text(above.lexically_normal().string()).hex();
    do above = above.parent_path();
    while (!fs::is_directory(above, error) && above.has_relative_path());
    folder_ = (above / (".tessera-start-" + digest.substr(0, 16))).string();
  }
  thread_ = std::thread([this] { loop(); });
}

StartWatch::~StartWatch() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  over_.notify_all();
  thread_.join();
  take_presence_back();
}

void StartWatch::loop() {
  Patience patience;
  double say_at = std::min(options_.say_seconds, options_.timeout_seconds / 2), show_at = std::min(show_seconds, say_at);
  std::unique_lock lock(mutex_);
  while (!over_.wait_for(lock, std::chrono::duration<double>(start_look_seconds), [this] { return stop_; })) {
    const double waited = patience.waited();
    const bool last = waited >= options_.timeout_seconds;
    if (waited >= show_at || last) show_presence(), show_at = waited + show_seconds;
    if (waited >= say_at || last) say(waited, last), say_at = waited + say_again_seconds;
    if (!last) continue;
    std::this_thread::sleep_for(std::chrono::duration<double>(last_words_seconds));  // others come to their end now, and look who is here
    take_presence_back();
    report_end(static_cast<int>(ExitCode::lost));
    leave_now(ExitCode::lost);
  }
}

/// Also tells that this rank still waits: who was killed leaves its file behind.
void StartWatch::show_presence() {
  if (folder_.empty()) return;
  std::error_code error;
  const fs::path path = fs::path(folder_) / fmt::format("rank-{}", launch_.rank);
  // Written once and renamed, so that nobody reads an empty one; touched by the file server's clock.
  if (shown_ && utimensat(AT_FDCWD, path.c_str(), nullptr, 0) == 0) return;
  // The name can be guessed. What is not ours is left alone: then nobody can be named.
  if (!make_own_folder(folder_).empty()) return;
  const std::string unfinished = path.string() + ".new", host = launch_.host + '\n';
  const int file = create_file(unfinished.c_str(), 0600);
  if (file < 0) return;
  const bool written = write(file, host.data(), host.size()) == static_cast<ssize_t>(host.size());
  if (close(file) == 0 && written) fs::rename(unfinished, path, error);
  shown_ = written && !error;
}

void StartWatch::take_presence_back() {
  if (!shown_) return;
  std::error_code error;  // what cannot be removed is not worth a run
  fs::remove(fs::path(folder_) / fmt::format("rank-{}", launch_.rank), error);
  fs::remove(folder_, error);  // the last one's call works
}

std::vector<Waiter> StartWatch::come() const {
  std::vector<Waiter> found;
  if (!shown_) return found;
  std::error_code error;
  const auto now = fs::last_write_time(fs::path(folder_) / fmt::format("rank-{}", launch_.rank), error);  // by the file server's clock
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    Waiter waiter;
    if (!name.starts_with("rank-") || name.ends_with(".new") ||
        std::from_chars(name.data() + 5, name.data() + name.size(), waiter.rank).ec != std::errc())
      continue;
    if (now - entry.last_write_time(error) > fresh || error) continue;
    std::string text, ignored;
    if (read_regular(entry.path().string(), most_host_bytes, text, ignored)) std::istringstream(text) >> waiter.host;
    if (!waiter.host.empty()) found.push_back(waiter);
  }
  return found;
}

/// The lowest rank that has come speaks; where ranks do not see each other, each for itself.
void StartWatch::say(double waited, bool last) const {
  const std::vector<Waiter> all = come();
  for (const Waiter& waiter : all)
    if (waiter.rank < launch_.rank) return;
  const std::string missing = describe_missing(launch_, all);
  if (last)
    log_line(LogLevel::error, fmt::format("the ranks of this launch have waited {} for each other (topology.start_timeout), and the job "
                                          "ends: {}. Look for a node that did not boot, or a rank that runs another program than tessera.",
                                          seconds_text(waited), missing));
  else
    warning("the ranks of this launch have waited {} for each other: {}. After {} (topology.start_timeout) the job ends.",
            seconds_text(waited), missing, seconds_text(options_.timeout_seconds));
}

}  // namespace tessera
