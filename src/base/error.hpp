// What every failure is thrown as. base/check.hpp says how; what nvcc compiles with Kokkos includes this alone, since it cannot read fmt.
#pragma once
#include <stdexcept>
#include <string>

namespace tessera {

/// Exit statuses of the program. docs/operations.md documents them and slurm scripts rely on them: never renumber.
enum class ExitCode : int {
  ok = 0,
  internal = 1,      ///< a broken invariant: a defect of Tessera
  usage = 2,         ///< command line or deck
  data = 3,          ///< token files, prompts, other input
  checkpoint = 4,    ///< a checkpoint that is missing, damaged or of another model
  memory = 5,        ///< the plan does not fit
  environment = 6,   ///< launch, MPI, permissions, missing device
  storage = 7,       ///< a write failed: disk full, quota, input/output error
  numerics = 8,      ///< loss or gradient is not finite, or fixed point overflowed
  interrupted = 75,  ///< SIGTERM, SIGINT, SIGUSR1 or SIGHUP arrived; what there was to save is saved; run again to go on
  lost = 76,         ///< a rank or node was lost, or a collective's time limit passed; the last checkpoint is whole; run again to go on
  // 77 is what tests end with that were skipped.
  do_not_requeue = 78,  ///< decided, by a run or by its job script: the fault would be met again, so nobody starts the run again by himself
  no_progress = 79      ///< of job scripts: start after start saved no newer step
};

/// What is thrown. `code` becomes the exit status of the process; what() is shown to the user as it stands.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code(code) {}
  ExitCode code;
};

}  // namespace tessera
