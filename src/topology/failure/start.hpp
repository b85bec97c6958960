// A watch over the start: a launch of which some ranks never come waits in MPI_Init, where nobody can ask who it is.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace tessera {

struct StartOptions {
  double timeout_seconds = 300;  ///< then this process ends with ExitCode::lost
  double say_seconds = 10;       ///< then, or at half of that time, who is missing is said first
  /// A folder that is, or will be, the run's own on all ranks. Ranks that have waited a second leave a file each in the nearest folder
  /// above it that exists, and take it back when the wait is over. Empty: nobody can be named.
  std::string run_folder = {};
};

/// What the launcher says of this process. For messages alone: ranks come from MPI, nodes from the machines.
struct LauncherWord {
  int rank = 0, ranks = 1;
  std::string host, nodes;  ///< `nodes`: all of the job, as Slurm writes them
};
LauncherWord launch_of_environment();
/// For an error that comes before MPI has said which rank this is: from here on the log names it, and its host, by the launcher's word.
void log_launch_identity();
/// Whether a launcher has started several processes, of which this is one: by mpiexec, or as tasks of a step of srun. A process inside an
/// allocation that nobody launched is alone.
bool launched_as_several();
/// And no mpiexec between: srun answers MPI_Abort with SIGKILL to all ranks, and the run's status is lost.
bool started_by_srun();

/// "n[1-3,07],m" -> n1, n2, n3, n07, m. One pair of brackets a name.
std::vector<std::string> expand_hosts(std::string_view list);

/// A rank that waits, and where.
struct Waiter {
  int rank = 0;
  std::string host;
};
/// Who has come and who has not.
std::string describe_missing(const LauncherWord& launch, const std::vector<Waiter>& come);

/// What of this machine MPI's start takes, and what there is of it. One sentence each; empty where there is enough.
std::string describe_scarcity(std::int64_t shared_free_bytes, std::int64_t files_allowed, std::int64_t files_open, int local_ranks);

/// Around MPI_Init, which ends the process itself where it fails: what the machine has too little of is said before, since the launcher may
/// end this process with MPI's own words; and that it was MPI which did not start, with status 6, where there is still time to.
class MpiStart {
 public:
  MpiStart();
  ~MpiStart();
  MpiStart(const MpiStart&) = delete;
  MpiStart& operator=(const MpiStart&) = delete;
};

class StartWatch {
 public:
  explicit StartWatch(StartOptions options);
  /// The world stands.
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

 private:
  void loop();
  void show_presence();
  void take_presence_back();
  std::vector<Waiter> come() const;
  void say(double waited, bool last) const;

  StartOptions options_;
  LauncherWord launch_;
  std::string folder_;  ///< of the files; empty where there is none
  bool shown_ = false;
  std::mutex mutex_;
  std::condition_variable over_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace tessera
