// How ranks are started on nodes of an allocation: which nodes there are, and the command lines of srun and of mpiexec. Pure.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "supervise/decide.hpp"

namespace tessera {

enum class LaunchWay { local, hosts, slurm };  ///< on this machine, by mpiexec on named hosts, by srun

/// What the command line and the environment say of where ranks may run.
struct WhereToLaunch {
  int ranks = 0, spares = 0;
  bool local = false;                                       ///< --local
  std::string hosts = {}, hostfile = {}, launcher = {};     ///< --hosts, the text of --hostfile, --launcher
  std::optional<std::string> slurm_nodes = {};              ///< SLURM_JOB_NODELIST, inside an allocation of Slurm
  std::optional<std::string> pbs_hostfile = {};             ///< the text of PBS_NODEFILE
  std::string mpiexec = {};                                 ///< TESSERA_MPIEXEC, as the job scripts take it
  std::string slurm_mpi = {}, slurm_cores = {}, srun = {};  ///< SLURM_MPI_TYPE, SLURM_CPUS_PER_TASK, TESSERA_SRUN
  /// Whether the site's srun knows an option, by its help.
  std::function<bool(std::string_view)> srun_has = [](std::string_view) { return true; };
};

struct RankLauncher {
  LaunchWay way = LaunchWay::local;
  std::vector<std::string> words;  ///< the program and its options
};

struct FirstLaunch {
  RankLauncher launcher;
  RankPlaces places;
};

/// Throws Error(environment) where there is no allocation, Error(usage) where ranks, nodes and spares do not go together.
FirstLaunch first_launch(const WhereToLaunch& where);

/// A line a rank, which both mpiexecs and srun read: the node's name.
std::string host_lines(const RankPlaces& places);
/// `hosts`: the file with host_lines(). `report`: of TESSERA_STATUS_FILE, which not every mpiexec takes along to other hosts.
std::vector<std::string> launch_words(const RankLauncher& launcher, const RankPlaces& places, const std::string& hosts,
                                      const std::string& report, const std::vector<std::string>& program);
/// A process on the node that ends well at once.
std::vector<std::string> probe_words(const RankLauncher& launcher, const std::string& node);

}  // namespace tessera
