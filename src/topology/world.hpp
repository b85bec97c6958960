// The MPI world of a run: who this rank is, how a run ends well, and how one rank's failure ends all.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.hpp"
#include "base/identity.hpp"
#include "topology/failure/awaited.hpp"
#include "topology/failure/start.hpp"
#include "topology/failure/stragglers.hpp"
#include "topology/failure/watchdog.hpp"
#include "topology/failure/whereabouts.hpp"
#include "topology/launch.hpp"

namespace tessera {

struct WorldOptions {
  double collective_timeout_seconds = 300;  ///< a collective that waits longer is an error
  double finalize_timeout_seconds = 10;     ///< MPI's end may hang (MPICH 4.0.2 over TCP); after this the process leaves without it
  StartOptions start = {};                  ///< how long ranks wait for each other at the start, and who is missing
  Identity identity = {};                   ///< of this program: ranks whose identities differ are refused before anything else
  bool mixed_processors = false;            ///< what differs may follow from the processor; all ranks must say so
};

/// This rank's place. Ranks come from MPI and nodes from the machines themselves, never from the job manager's environment: ranks of a node
/// have its name and its boot.
struct Place {
  int rank = 0, ranks = 1;
  int node = 0, nodes = 1;              ///< nodes are numbered by their lowest rank
  int local_rank = 0, local_ranks = 1;  ///< on this node
  std::string host;
};

/// An error that all ranks have agreed on: they all throw it, rank `speaker` prints it, and all leave through finish().
class AgreedError : public Error {
 public:
  AgreedError(ExitCode code, const std::string& message, int speaker) : Error(code, message), speaker(speaker) {}
  int speaker;
};

/// One at a time in a process. Its functions are collective over its ranks unless they say otherwise. What it starts ends with it: threads,
/// links, shared memory, communicators, handlers of signals, the process's binding to cores.
class World {
 public:
  /// Of the launch's ranks below `ranks`, of which this must be one; the others take no part. The launch must outlive it.
  World(Launch& launch, int ranks, const WorldOptions& options = {});
  /// Leaves as finish(0) would if nobody called finish; during an exception ends all ranks instead, since the others may wait.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const Place& place() const { return place_; }
  int rank() const { return place_.rank; }
  int ranks() const { return place_.ranks; }
  const WorldOptions& options() const { return options_; }
  /// "0-3 on n1, 4-7 on n2"
  std::string map_of_ranks() const;
  /// Where this process is will be asked of `describe`, from another thread, when a rank waits too long. This rank only.
  void describe_work(std::function<RankWork()> describe) const;
  /// From now on, until options that are off, it is said when no rank moves, and by whose fault. This rank only; all do it.
  void watch_progress(const WatchdogOptions& options) const;
  /// Ranks that were found to be slow since the last call. On rank 0; elsewhere none.
  std::vector<Straggler> take_stragglers() const;
  /// Whom the others have waited for since `begin` of now_seconds(). On rank 0; elsewhere nobody.
  AwaitedRanks awaited_since(double begin) const;
  /// What each rank has said last of what it has computed. On rank 0 of several; elsewhere none.
  std::vector<Spent> spent_of_ranks() const;
  /// Calls `part` when the world ends as it should, the last one first: what was changed of the process for it is put back. This rank only.
  void at_end(std::function<void()> part) const;
  /// From now on a collective of this world, or of a communicator made in it, that waits longer is an error. This rank only.
  void limit_waits(double seconds) { options_.collective_timeout_seconds = seconds; }

  void barrier() const;
  std::int64_t sum(std::int64_t mine) const;
  /// Every rank's text, by rank.
  std::vector<std::string> gather_text(std::string_view mine) const;
  /// Root's text on all ranks.
  std::string broadcast_text(std::string_view mine, int root = 0) const;
  /// Refuses ranks that differ: throws AgreedError(environment) that names `what`, the ranks and their hosts. For schedules, before step 0.
  void require_same(std::string_view what, const Hash128& mine) const { require_same(what, mine, 0); }
  /// The same among the ranks that give the same role.
  void require_same(std::string_view what, const Hash128& mine, int role) const;
  /// The same of what ranks have made of input that they have compared before: where it differs that is a defect of the program, and
  /// AgreedError(internal) says which line is the first that does, on both ranks.
  void require_same_lines(std::string_view what, const std::vector<std::string>& mine, int role) const;
  /// Throws AgreedError(environment) with the text that `differences` makes of rank 0's text on the first rank where it is not empty.
  void require_like_rank_0(std::string_view mine, const std::function<std::string(const std::string& of_rank_0)>& differences) const;
  /// Refuses ranks that run another program or, unless all allow it, compute with other instructions: AgreedError(environment).
  void require_same_program() const;
  /// Runs `part` on this rank and waits for all. If it threw on any rank, all ranks throw AgreedError with the first failing rank's
  /// message and code, so that a fault which every rank sees is printed once. `part` must not call collectives that another rank could
  /// skip by failing.
  void together(const std::function<void()>& part) const;

  /// Normal end; results are on disk before. Waits for all ranks, returns the highest status of all ranks, which is what mpiexec and srun
  /// return where the launch ends with it. The launch stays.
  int finish(int status = 0);
  /// One rank only, from any thread: prints the message and ends all ranks. mpiexec then returns `code`; srun kills every task of the step
  /// and returns 137, so what ranks can find out together belongs into together(), whose code srun does return. When several ranks of a
  /// node call it, the first one speaks.
  [[noreturn]] void abort_all(ExitCode code, const std::string& message) const;

  struct Handles;  ///< MPI communicators: topology/world_handles.hpp
  const Handles& handles() const { return *handles_; }

 private:
  Launch& launch_;
  WorldOptions options_;
  Place place_;
  std::vector<std::string> hosts_;  // by rank
  std::unique_ptr<Handles> handles_;
  int exceptions_at_start_ = 0;
  bool finished_ = false;
};

/// Lets the world watch progress while it lives.
class StillnessWatch {
 public:
  StillnessWatch(const World& world, const WatchdogOptions& options) : world_(world) { world_.watch_progress(options); }
  ~StillnessWatch() { world_.watch_progress({}); }
  StillnessWatch(const StillnessWatch&) = delete;
  StillnessWatch& operator=(const StillnessWatch&) = delete;

 private:
  const World& world_;
};

/// Describes this process's work while it lives.
class DescribedWork {
 public:
  DescribedWork(const World& world, std::function<RankWork()> describe) : world_(world) { world_.describe_work(std::move(describe)); }
  ~DescribedWork() { world_.describe_work({}); }
  DescribedWork(const DescribedWork&) = delete;
  DescribedWork& operator=(const DescribedWork&) = delete;

 private:
  const World& world_;
};

/// The MPI library that this process runs with: "MPICH 4.0.2", "Open MPI v4.1.4". MPI need not have been started.
std::string mpi_version();
/// The same of what MPI_Get_library_version says, which with MPICH is a page and with Open MPI names its packager.
std::string name_mpi(std::string_view library_text);
/// The NCCL that this process runs with; of a build without CUDA empty.
std::string nccl_version();

/// The frame of a program that needs MPI: starts a World, has its ranks compare their programs, calls body, returns the exit status. An
/// Error that leaves body ends all ranks; an AgreedError is printed once. Nothing that leaves body is lost, and no rank is left waiting.
/// Where this process has a Launch, the World is one of the ranks that it has chosen, and MPI stays; else MPI starts and ends with it.
int run_in_world(const WorldOptions& options, const std::function<int(World&)>& body);

}  // namespace tessera
