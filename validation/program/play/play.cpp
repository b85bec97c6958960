// tessera_play: plays one command line of tessera after another on the first ranks of one launch, so that a test of many layouts starts MPI
// once. Rank 0 reads a request a line from standard input, in JSON:
//   {"ranks": 2, "ranks_per_node": null, "argv": ["train", "deck.toml", "key=value"], "out": FILE, "err": FILE,
//    "environment": {"NAME": "value or null"}, "cwd": FOLDER}
// and answers by one on standard output, when all of its ranks are done:
//   {"status": 0, "seconds": 0.4, "processor_seconds": 0.7, "threads": 5, "files": 20}
// of which the last two are the most that one of the ranks has left. Who is not asked for sleeps. What ends a process ends the launch, with
// the status that the program would have ended with.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/current_error.hpp"
#include "base/end_report.hpp"
#include "base/log.hpp"
#include "commands/program.hpp"
#include "kernels/parallel.hpp"
#include "memory/runtime.hpp"
#include "topology/launch.hpp"

namespace tessera {
namespace {

using Json = nlohmann::json;

struct Request {
  int ranks = 1;
  std::vector<std::string> arguments;  ///< of tessera
  std::string out, err, folder;
  std::map<std::string, std::optional<std::string>> environment;  ///< nothing: the name is not set
};

Request read_request(const std::string& line) {
  const Json json = Json::parse(line);
  Request r{.ranks = json.at("ranks"),
            .arguments = json.at("argv"),
            .out = json.at("out"),
            .err = json.at("err"),
            .folder = json.at("cwd"),
            .environment = {}};
  for (const auto& [name, value] : json.at("environment").items())
    r.environment[name] = value.is_null() ? std::nullopt : std::optional<std::string>(value.get<std::string>());
  if (const Json& size = json.at("ranks_per_node"); !size.is_null())
    r.environment["TESSERA_RANKS_PER_NODE"] = std::to_string(size.get<int>());
  return r;
}

double processor_seconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage used = {};
    getrusage(who, &used);
    for (const timeval& t : {used.ru_utime, used.ru_stime})
      seconds += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  }
  return seconds;
}

std::int64_t count_in(const char* folder) {
  std::error_code error;
  return std::distance(std::filesystem::directory_iterator(folder, error), std::filesystem::directory_iterator());
}

/// While it lives this process is as one that was started for the request. What the program changes of it is put back.
class OwnProcess {
 public:
  OwnProcess(const Request& request, int rank) {
    for (char** entry = environ; *entry; ++entry) {
      const std::string text = *entry;
      const std::size_t end = text.find('=');
      environment_[text.substr(0, end)] = text.substr(end + 1);
    }
    getrlimit(RLIMIT_NOFILE, &files_);
    for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], nullptr, &before_[i]);
    folder_ = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    std::fflush(nullptr);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      kept_[i] = fcntl(outputs[i], F_DUPFD_CLOEXEC, 3);
      const std::string& path = i == 0 ? request.out : request.err;
      const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
      if (file < 0 || dup2(file, outputs[i]) < 0) fail(ExitCode::storage, "{} cannot be written: {}", path, std::strerror(errno));
      close(file);
    }
    for (const auto& [name, value] : request.environment) set(name, value);
    describe_launch(request.ranks, rank);
    if (chdir(request.folder.c_str()) != 0) fail(ExitCode::usage, "{} cannot be entered: {}", request.folder, std::strerror(errno));
    log_anew();
    forget_end_report();
    kernels::plan_for_threads(1);
  }
  ~OwnProcess() {
    std::fflush(nullptr);
    std::clearerr(stdout);
    std::clearerr(stderr);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      dup2(kept_[i], outputs[i]);
      close(kept_[i]);
    }
    if (fchdir(folder_) == 0) close(folder_);
    for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &before_[i], nullptr);
    setrlimit(RLIMIT_NOFILE, &files_);
    std::vector<std::string> made;
    for (char** entry = environ; *entry; ++entry)
      if (const std::string name(*entry, std::strcspn(*entry, "=")); !environment_.contains(name)) made.push_back(name);
    for (const std::string& name : made) unsetenv(name.c_str());
    for (const auto& [name, value] : environment_) setenv(name.c_str(), value.c_str(), 1);
    forget_end_report();
    log_anew();
  }
  OwnProcess(const OwnProcess&) = delete;
  OwnProcess& operator=(const OwnProcess&) = delete;

 private:
  static void set(const std::string& name, const std::optional<std::string>& value) {
    if (value)
      setenv(name.c_str(), value->c_str(), 1);
    else
      unsetenv(name.c_str());
  }
  /// As a launcher of so many ranks would, or where one is asked for nobody.
  static void describe_launch(int ranks, int rank) {
    for (const char* name : {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"})
      if (std::getenv(name)) set(name, ranks == 1 ? std::nullopt : std::optional(std::to_string(ranks)));
    for (const char* name : {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK"})
      if (std::getenv(name)) set(name, ranks == 1 ? std::nullopt : std::optional(std::to_string(rank)));
  }

  static constexpr std::array<int, 2> outputs = {STDOUT_FILENO, STDERR_FILENO};
  static constexpr std::array<int, 3> signals = {SIGPIPE, SIGXFSZ, SIGABRT};
  std::map<std::string, std::string> environment_;
  rlimit files_ = {};
  int folder_ = -1;
  std::array<int, 2> kept_ = {};
  std::array<struct sigaction, 3> before_ = {};
};

/// Of one rank.
Json play(const Request& request, Launch& launch) {
  const double before = processor_seconds();
  int status = 0;
  {
    const OwnProcess process(request, launch.rank());
    launch.choose(request.ranks);
    std::vector<std::string> words = request.arguments;
    words.insert(words.begin(), "tessera");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    status = run_program(static_cast<int>(words.size()), argv.data());
  }
  return {{"status", status},
          {"processor_seconds", processor_seconds() - before},
          {"threads", count_in("/proc/self/task")},
          {"files", count_in("/proc/self/fd")}};
}

/// The next line; nothing at the end.
std::optional<std::string> next_line(int file, std::string& rest) {
  while (true) {
    if (const std::size_t end = rest.find('\n'); end != rest.npos) {
      std::string line = rest.substr(0, end);
      rest.erase(0, end + 1);
      return line;
    }
    char piece[4096];
    const ssize_t bytes = read(file, piece, sizeof piece);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return std::nullopt;
    rest.append(piece, static_cast<std::size_t>(bytes));
  }
}

void answer(const Json& json) {
  std::printf("%s\n", json.dump().c_str());
  std::fflush(stdout);
}

/// Rank 0's next request that can be played; empty at the end.
std::string next_request(int file, std::string& rest, int ranks) {
  while (const std::optional<std::string> line = next_line(file, rest)) {
    try {
      const Request request = read_request(*line);
      if (request.ranks >= 1 && request.ranks <= ranks) return *line;
      answer({{"error", fmt::format("{} ranks are asked for and {} were started", request.ranks, ranks)}});
    } catch (const Json::exception& error) {
      answer({{"error", error.what()}});
    }
  }
  return {};
}

int serve() {
  // Requests are read from another descriptor: what the program reads of its standard input is at its end.
  const int requests = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3), nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (requests < 0 || nothing < 0 || dup2(nothing, STDIN_FILENO) < 0)
    fail(ExitCode::environment, "no standard input: {}", std::strerror(errno));
  close(nothing);
  Launch launch;
  const KeptKokkos kokkos;
  std::string rest;
  while (true) {
    const std::string text = launch.await_text(launch.rank() == 0 ? next_request(requests, rest, launch.ranks()) : "");
    if (text.empty()) break;
    const Request request = read_request(text);
    if (launch.rank() >= request.ranks) continue;
    const double begin = now_seconds();
    Json all = Json::object();
    for (const std::string& of_rank : launch.collect_texts(request.ranks, play(request, launch).dump())) {
      const Json one = Json::parse(of_rank);
      for (const char* most : {"status", "threads", "files"})
        all[most] = std::max(all.value(most, std::int64_t{0}), one.at(most).get<std::int64_t>());
      all["processor_seconds"] = all.value("processor_seconds", 0.0) + one.at("processor_seconds").get<double>();
    }
    if (launch.rank() != 0) continue;
    all["seconds"] = now_seconds() - begin;
    answer(all);
  }
  launch.end();
  return 0;
}

}  // namespace
}  // namespace tessera

int main() {
  using namespace tessera;
  try {
    return serve();
  } catch (const std::exception&) {
    const Error error = current_error();
    log_line(LogLevel::error, error.what());
    return static_cast<int>(error.code);
  }
}
