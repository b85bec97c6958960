#include "commands/one_process.hpp"

#include "base/check.hpp"
#include "topology/failure/start.hpp"

namespace tessera {

void require_one_process(std::string_view command) {
  if (!launched_as_several()) return;
  fail(ExitCode::usage,
       "tessera {} works in one process, but the launcher started {}, and each would do the whole work. Start it without mpiexec or srun, "
       "or with -n 1",
       command, launch_of_environment().ranks);
}

}  // namespace tessera
