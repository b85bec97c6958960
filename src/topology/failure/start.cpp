#include "topology/failure/start.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/check.hpp"
#include "base/end_report.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/regular_file.hpp"
#include "deck/environment.hpp"
#include "topology/failure/account.hpp"
#include "topology/failure/leave.hpp"
#include "topology/failure/patience.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr double look_seconds = 0.25, show_seconds = 1, say_again_seconds = 60, last_words_seconds = 1.5;
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

Launch launch_of_environment() {
  Launch launch;
  const auto first = [](std::initializer_list<const char*> names, int fallback) {
    for (const char* name : names)
      if (const auto value = environment(name)) return number_of(value, fallback);
    return fallback;
  };
  launch.rank = first({"PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID"}, 0);
  launch.ranks = first({"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS"}, 1);
  launch.nodes = environment("SLURM_STEP_NODELIST").value_or("");
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  launch.host = name;
  return launch;
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

std::string describe_missing(const Launch& launch, const std::vector<Waiter>& come) {
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
  while (!over_.wait_for(lock, std::chrono::duration<double>(look_seconds), [this] { return stop_; })) {
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
  fs::create_directory(folder_, error);
  const fs::path unfinished = path.string() + ".new";
  std::ofstream file(unfinished, std::ios::trunc);
  file << launch_.host << '\n';
  file.close();
  if (file.good()) fs::rename(unfinished, path, error);
  shown_ = file.good() && !error;
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
    log_line(LogLevel::error,
             fmt::format(
                 "the ranks of this launch have waited {} for each other (topology.start_timeout), and the job ends: {}. Look for a node "
                 "that did not boot, and for a program on one of the ranks that is no tessera.",
                 seconds_text(waited), missing));
  else
    warning("the ranks of this launch have waited {} for each other: {}. At {} (topology.start_timeout) the job ends.",
            seconds_text(waited), missing, seconds_text(options_.timeout_seconds));
}

}  // namespace tessera
