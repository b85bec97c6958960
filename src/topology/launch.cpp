#include "topology/launch.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "base/address_space.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/regular_file.hpp"
#include "deck/environment.hpp"
#include "topology/failure/leave.hpp"
#include "topology/launch_handles.hpp"
#include "topology/world.hpp"

namespace tessera {
namespace {

Launch* g_current = nullptr;  // the process's own, as MPI is

constexpr int text_tag = 1;

extern "C" void stay_here(int) {
  while (true) pause();
}

/// Leaves a finished run while MPI_Finalize hangs in `stuck`. A launcher takes an exit without its protocol's goodbye for a crash and kills
/// the ranks that are still there, which would turn a good run's status into 9. So the stuck thread is stopped, or it would read the
/// launcher's answer, and the goodbye is said here: one line on the socket that hydra and Slurm give to each rank (PMI-1).
void leave_without_finalize(pthread_t stuck, int launcher_socket, int status) {
  constexpr std::string_view goodbye = "cmd=finalize\n", answer = "finalize_ack";
  struct sigaction action = {};
  action.sa_handler = stay_here;
  if (launcher_socket >= 0 && sigaction(SIGUSR2, &action, nullptr) == 0 && pthread_kill(stuck, SIGUSR2) == 0) {
    usleep(50000);
    std::string heard;
    char text[256];
    if (write(launcher_socket, goodbye.data(), goodbye.size()) < 0) _exit(status);
    for (pollfd socket{launcher_socket, POLLIN, 0}; heard.find(answer) == std::string::npos && poll(&socket, 1, 2000) == 1;) {
      ssize_t bytes = read(launcher_socket, text, sizeof(text));
      if (bytes <= 0) break;
      heard.append(text, static_cast<std::size_t>(bytes));
    }
  }
  _exit(status);
}

/// Each lane calls MPI from its own thread.
void refuse_single_thread(int provided) {
  if (provided < MPI_THREAD_MULTIPLE)
    fail(ExitCode::environment,
         "this MPI library ({}) offers thread level {}, but Tessera needs MPI_THREAD_MULTIPLE ({}): build with one that has it (for MPICH, "
         "one configured with --enable-threads=multiple)",
         mpi_version(), provided, MPI_THREAD_MULTIPLE);
}

/// A launcher that speaks another process-management protocol than the MPI library starts N processes that each believe to be alone.
void refuse_singletons(int ranks) {
  if (ranks > 1) return;
  for (const char* name : {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS"}) {
    int promised = environment_number(name);
    if (promised <= 1) continue;
    fail(ExitCode::environment,
         "the launcher started {} processes ({}={}), but MPI connected none of them: each would train alone. This program runs with {}: "
         "start with the mpiexec of that MPI, or with `srun --mpi=pmi2` (`--mpi=pmix` for Open MPI). For one rank on purpose inside an "
         "allocation use `srun --mpi=pmi2 -n 1`.",
         promised, name, promised, mpi_version());
  }
}

/// Completes a request that may take for ever.
void await(MPI_Request& request) {
  constexpr int most_microseconds = 4000;
  int done = 0, pause_microseconds = 50;
  while (true) {
    MPI_CHECK(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done) return;
    usleep(static_cast<useconds_t>(pause_microseconds));
    pause_microseconds = std::min(most_microseconds, pause_microseconds * 3 / 2);
  }
}

/// Collective: by rank the lowest one that shares its node.
/// Where more ranks start on a node than it has processing units, MPICH is to leave its unit at every look while it waits for the others:
/// it would spin a thousand times, while they cannot come. Who has set the variable himself keeps it.
void let_others_have_the_core() {
  if (environment_number("MPI_LOCALNRANKS") > sysconf(_SC_NPROCESSORS_ONLN)) default_environment("MPIR_CVAR_POLLS_BEFORE_YIELD", "1");
}

/// What ranks of a node have in common and no others: its name, and its start. Containers of one node may have processes and shared memory
/// of their own; they share its cores and its memory all the same.
Hash128 node_key() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  std::string start, ignored;
  read_regular("/proc/sys/kernel/random/boot_id", sizeof name, start, ignored);
  return hash_text(fmt::format("{}\n{}", name, start));
}

/// By rank the lowest one of its node. MPI_Comm_split_type would say the same by a dozen collectives that block, in which 32 ranks of two
/// cores spin for two seconds.
std::vector<int> find_leaders(MPI_Comm all, int ranks) {
  const Hash128 mine = node_key();
  std::vector<Hash128> keys(static_cast<std::size_t>(ranks));
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, keys.data(), sizeof mine, MPI_BYTE, all, &request));
  complete(request);
  std::map<Hash128, int> lowest;
  std::vector<int> leaders;
  for (const Hash128& key : keys) leaders.push_back(lowest.emplace(key, static_cast<int>(leaders.size())).first->second);
  return leaders;
}

}  // namespace

struct ExitTimer::Waiting {
  std::mutex mutex;
  std::condition_variable stopped;
  bool stop = false;
  std::thread thread;
};

ExitTimer::ExitTimer(double seconds, std::function<void()> leave) : waiting_(std::make_unique<Waiting>()) {
  waiting_->thread = std::thread([w = waiting_.get(), seconds, leave = std::move(leave)] {
    std::unique_lock lock(w->mutex);
    if (!w->stopped.wait_for(lock, std::chrono::duration<double>(seconds), [w] { return w->stop; })) leave();
  });
}

ExitTimer::~ExitTimer() {
  {
    std::lock_guard lock(waiting_->mutex);
    waiting_->stop = true;
  }
  waiting_->stopped.notify_all();
  waiting_->thread.join();
}

Launch::Launch(const StartOptions& start) : exceptions_at_start_(std::uncaught_exceptions()) {
  TESSERA_REQUIRE(!g_current, "MPI was started twice");
#ifdef OPEN_MPI
  // It ends a process that Slurm has started without PMIx by a text on how to build Open MPI.
  if (!environment("PMIX_RANK") && !environment("OMPI_COMM_WORLD_SIZE")) refuse_singletons(1);
#endif
  // As seen of MPICH with UCX, which may crash where it gets fewer.
  require_address_space((launched_as_several() ? 256 : 160) << 20, "MPI with its threads");
  handles_ = std::make_unique<Handles>();
  handles_->start.emplace(start);
  let_others_have_the_core();
  int provided = MPI_THREAD_SINGLE;
  {
    const MpiStart init;
    MPI_CHECK(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
  }
  MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
  MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &ranks_));
  chosen_ = ranks_;
  log_identity(rank_, ranks_);
  try {
    refuse_single_thread(provided);
    refuse_singletons(ranks_);
  } catch (const Error&) {
    // All ranks see the same fault, so all come here.
    MPI_Finalize();
    throw;
  }
  handles_->all = OwnedComm(duplicate(MPI_COMM_WORLD));
  handles_->leaders = find_leaders(handles_->all.get(), ranks_);
  g_current = this;
}

Launch::~Launch() {
  if (handles_ && std::uncaught_exceptions() <= exceptions_at_start_) end();
  g_current = nullptr;
}

Launch* Launch::current() { return g_current; }

MPI_Comm Launch::Handles::first(int ranks) {
  if (std::cmp_equal(ranks, leaders.size())) return all.get();
  auto found = parts.find(ranks);
  if (found == parts.end()) {
    std::vector<int> members(static_cast<std::size_t>(ranks));
    std::iota(members.begin(), members.end(), 0);
    found = parts.try_emplace(ranks, comm_of(all.get(), members, 0)).first;
  }
  return found->second.get();
}

void Launch::stands() { handles_->start.reset(); }

void Launch::end(int status, double seconds) {
  const int launcher_socket = environment("PMI_FD") ? environment_number("PMI_FD") : -1;
  ExitTimer timer(seconds, [=, stuck = pthread_self()] { leave_without_finalize(stuck, launcher_socket, status); });
  handles_.reset();
  MPI_CHECK(MPI_Finalize());
}

std::string Launch::await_text(std::string_view mine) {
  stands();
  std::string text(rank_ == 0 ? mine : std::string_view());
  int length = static_cast<int>(text.size());
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Ibcast(&length, 1, MPI_INT, 0, handles_->all.get(), &request));
  await(request);
  text.resize(static_cast<std::size_t>(length));
  MPI_CHECK(MPI_Ibcast(text.data(), length, MPI_CHAR, 0, handles_->all.get(), &request));
  await(request);
  return text;
}

std::vector<std::string> Launch::collect_texts(int ranks, std::string_view mine) const {
  MPI_Comm comm = handles_->all.get();
  int length = static_cast<int>(mine.size());
  MPI_Request request = MPI_REQUEST_NULL;
  if (rank_ != 0) {
    MPI_CHECK(MPI_Isend(&length, 1, MPI_INT, 0, text_tag, comm, &request));
    await(request);
    MPI_CHECK(MPI_Isend(mine.data(), length, MPI_CHAR, 0, text_tag, comm, &request));
    await(request);
    return {};
  }
  std::vector<std::string> texts{std::string(mine)};
  for (int rank = 1; rank < ranks; ++rank) {
    MPI_CHECK(MPI_Irecv(&length, 1, MPI_INT, rank, text_tag, comm, &request));
    await(request);
    std::string& text = texts.emplace_back(static_cast<std::size_t>(length), '\0');
    MPI_CHECK(MPI_Irecv(text.data(), length, MPI_CHAR, rank, text_tag, comm, &request));
    await(request);
  }
  return texts;
}

}  // namespace tessera
