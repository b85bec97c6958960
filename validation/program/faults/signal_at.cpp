// Preloaded into a rank by start_signals.py: sends the process a signal at a point of its start that no clock decides.
//   SIGNAL_AT=EVENT   0: before the program's first line, when the loader runs the libraries' constructors; N: at its N-th call of MPI
//   SIGNAL=NUMBER     which signal
//   SIGNAL_RANK=R     which rank, where there are several
//   SIGNAL_HANG=1     the call does not return, as when a rank of the world never starts
// It stands in for the libraries that a real start spends its time in, so it knows nothing of the program.
#include <dlfcn.h>
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace {

int number(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : -1;
}

bool chosen() {
  const char *rank = std::getenv("PMI_RANK"), *wanted = std::getenv("SIGNAL_RANK");
  if (!rank) rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return !rank || !wanted || std::string_view(rank) == wanted;
}

void event(int which) {
  if (which != number("SIGNAL_AT") || !chosen()) return;
  kill(getpid(), number("SIGNAL"));
  while (number("SIGNAL_HANG") == 1) pause();
}

std::atomic<int> calls{0};

[[gnu::constructor]] void before_main() {
  unsetenv("LD_PRELOAD");  // not for the daemon that Open MPI starts beside a rank that is alone
  event(0);
}

}  // namespace

// The calls by which a start meets the other ranks.
#define AT_CALL(name, parameters, ...)                                                \
  extern "C" int name parameters {                                                    \
    event(++calls);                                                                   \
    return reinterpret_cast<int(*) parameters>(dlsym(RTLD_NEXT, #name))(__VA_ARGS__); \
  }
AT_CALL(MPI_Init_thread, (int* a, char*** b, int c, int* d), a, b, c, d)
AT_CALL(MPI_Comm_dup, (MPI_Comm a, MPI_Comm* b), a, b)
AT_CALL(MPI_Comm_split_type, (MPI_Comm a, int b, int c, MPI_Info d, MPI_Comm* e), a, b, c, d, e)
AT_CALL(MPI_Bcast, (void* a, int b, MPI_Datatype c, int d, MPI_Comm e), a, b, c, d, e)
AT_CALL(MPI_Allgather, (const void* a, int b, MPI_Datatype c, void* d, int e, MPI_Datatype f, MPI_Comm g), a, b, c, d, e, f, g)
AT_CALL(MPI_Iallreduce, (const void* a, void* b, int c, MPI_Datatype d, MPI_Op e, MPI_Comm f, MPI_Request* g), a, b, c, d, e, f, g)
AT_CALL(MPI_Iallgather, (const void* a, int b, MPI_Datatype c, void* d, int e, MPI_Datatype f, MPI_Comm g, MPI_Request* h), a, b, c, d, e,
        f, g, h)
AT_CALL(MPI_Ibcast, (void* a, int b, MPI_Datatype c, int d, MPI_Comm e, MPI_Request* f), a, b, c, d, e, f)
AT_CALL(MPI_Ibarrier, (MPI_Comm a, MPI_Request* b), a, b)
