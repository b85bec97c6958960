// What a run asks of Slurm: the head of a job script, from its plan and its predicted time. Pure: it looks at no machine.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace tessera {

struct JobNeeds {
  std::string deck;                         ///< as the script names it
  std::vector<std::string> overrides = {};  ///< that follow it
  std::string scripts = "slurm";            ///< the folder of common.sh
  int ranks = 1, per_node = 1;
  int cores = 1;                        ///< of a rank
  bool gpus = false;                    ///< a rank computes on one of its own
  bool state_on_host = false;           ///< a save then reads what no GPU has: it takes longer
  std::int64_t host_bytes = 0;          ///< that a rank's plan takes of its node
  std::int64_t steps = 0;               ///< of the run; 0: not known
  std::optional<double> seconds = {};   ///< of all steps, as predicted
  std::string machine = {};             ///< on which
  double hours = 24;                    ///< that a job may have at most
  std::vector<std::string> notes = {};  ///< what was assumed, a line each
};

/// In the units of sbatch.
struct JobHeader {
  int nodes = 1, tasks_per_node = 1, cpus_per_task = 1, gpus_per_node = 0;
  std::int64_t mem_gib = 0;                  ///< of a node
  std::optional<std::int64_t> minutes = {};  ///< of a job
  std::optional<double> run_seconds = {};    ///< of the run, with what saves and the start take
  std::int64_t jobs = 1;                     ///< starts that the run takes
  int notice = 300;                          ///< seconds before the limit at which ranks are asked to save
};

/// Memory of a rank beside its plan: program, libraries and MPI, and where it has a GPU the host's part of CUDA and NCCL. Allowances.
inline constexpr std::int64_t process_bytes_of_host = std::int64_t{1} << 30, process_bytes_of_gpu = std::int64_t{4} << 30;
/// What a run takes beside its steps, for saves, evaluations and stalls, as a share of them; and what a start takes, in seconds.
/// Allowances.
inline constexpr double beside_steps = 0.1, start_seconds = 600;

JobHeader job_header(const JobNeeds& needs);

/// The job script: #SBATCH lines, what they rest on, and the lines that start the run by slurm/common.sh.
std::string print_job(const JobNeeds& needs, const JobHeader& header);
Json job_json(const JobNeeds& needs, const JobHeader& header);

/// "36:00:00", "1-12:00:00": as sbatch takes it.
std::string slurm_time(std::int64_t minutes);

}  // namespace tessera
