#include "topology/world.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <map>

#include <fmt/format.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "base/address_space.hpp"
#include "base/clock.hpp"
#include "base/current_error.hpp"
#include "base/end_report.hpp"
#include "base/log.hpp"
#include "deck/environment.hpp"
#include "topology/failure/leave.hpp"
#include "topology/world_handles.hpp"

namespace tessera {
namespace {

constexpr double abort_grace_seconds = 5;

/// Calls `leave`, which does not return, unless it is destroyed within `seconds`.
class ExitTimer {
 public:
  ExitTimer(double seconds, std::function<void()> leave)
      : thread_([this, seconds, leave] {
          std::unique_lock lock(mutex_);
          if (!stopped_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return stop_; })) leave();
        }) {}
  ~ExitTimer() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    stopped_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

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

[[noreturn]] void end_process(int status) {
  tell_launcher(status);
  _exit(status);
}

int environment_number(const char* name) {
  std::string text = environment(name).value_or("");
  return text.empty() ? 0 : std::atoi(text.c_str());
}

/// Each lane calls MPI from its own thread.
void refuse_single_thread(int provided) {
  if (provided < MPI_THREAD_MULTIPLE)
    fail(ExitCode::environment,
         "this MPI library ({}) offers thread level {} and Tessera needs MPI_THREAD_MULTIPLE ({}): build with one that has it (of MPICH, "
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
         "start "
         "with the mpiexec of that MPI, or with `srun --mpi=pmi2` (`--mpi=pmix` for Open MPI); for one rank on purpose inside an "
         "allocation, "
         "`srun --mpi=pmi2 -n 1`.",
         promised, name, promised, mpi_version());
  }
}

/// The ranks that share this one's node. With TESSERA_RANKS_PER_NODE a node counts as several, of so many consecutive ranks each: what
/// happens between nodes can be tried on one.
MPI_Comm node_comm(MPI_Comm world, int rank) {
  MPI_Comm node = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node));
  const auto pretended = environment("TESSERA_RANKS_PER_NODE");
  if (!pretended) return node;
  const int size = environment_number("TESSERA_RANKS_PER_NODE");
  if (size < 1) fail(ExitCode::environment, "TESSERA_RANKS_PER_NODE={} is not a number of ranks", *pretended);
  int local = 0;
  MPI_Comm part = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_rank(node, &local));
  MPI_CHECK(MPI_Comm_split(node, local / size, local, &part));
  MPI_Comm_free(&node);
  return part;
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace

World::World(const WorldOptions& options) : options_(options), exceptions_at_start_(std::uncaught_exceptions()) {
#ifdef OPEN_MPI
  // It ends a process that Slurm has started without PMIx by a text on how to build Open MPI.
  if (!environment("PMIX_RANK") && !environment("OMPI_COMM_WORLD_SIZE")) refuse_singletons(1);
#endif
  // As seen of MPICH with UCX, which may crash where it gets fewer.
  require_address_space((launched_as_several() ? 256 : 160) << 20, "MPI with its threads");
  const StartWatch start(options.start);
  int provided = MPI_THREAD_SINGLE;
  {
    const MpiStart init;
    MPI_CHECK(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
  }
  MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &place_.rank));
  MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &place_.ranks));
  log_identity(place_.rank, place_.ranks);
  try {
    refuse_single_thread(provided);
    refuse_singletons(place_.ranks);
  } catch (const Error&) {
    // All ranks see the same fault, so all come here.
    MPI_Finalize();
    throw;
  }

  handles_ = std::make_unique<Handles>();
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
  handles_->world = OwnedComm(comm);
  comm = node_comm(comm, place_.rank);
  handles_->node = OwnedComm(comm);
  MPI_CHECK(MPI_Comm_rank(comm, &place_.local_rank));
  MPI_CHECK(MPI_Comm_size(comm, &place_.local_ranks));

  handles_->peers = Peers(comm);
  std::string reason;
  handles_->block = make_shared_block(comm, Handles::block_bytes(place_.local_ranks), true, reason);
  handles_->peers.share_marks(handles_->marks());

  int leader = place_.rank;
  MPI_CHECK(MPI_Bcast(&leader, 1, MPI_INT, 0, comm));
  std::vector<int> leaders(static_cast<std::size_t>(place_.ranks));
  MPI_CHECK(MPI_Allgather(&leader, 1, MPI_INT, leaders.data(), 1, MPI_INT, handles_->world.get()));
  std::sort(leaders.begin(), leaders.end());
  leaders.erase(std::unique(leaders.begin(), leaders.end()), leaders.end());
  place_.nodes = static_cast<int>(leaders.size());
  place_.node = static_cast<int>(std::lower_bound(leaders.begin(), leaders.end(), leader) - leaders.begin());
  place_.host = host_name();
  hosts_ = gather_text(place_.host);
  log_identity(place_.rank, place_.ranks, place_.nodes > 1 ? place_.host : "");
  if (place_.ranks > 1) handles_->watch = make_watch(*this, hosts_);
  handles_->peers.set_watch(handles_->watch.get());
  // Last: were anything to throw after it, the handler would be left with what is freed. Without marks or a watch nobody can tell who was
  // lost.
  if (handles_->watch && (handles_->marks() || place_.local_ranks == 1)) explain_aborts(&handles_->peers, place_.rank);
}

World::~World() {
  if (finished_) return;
  if (std::uncaught_exceptions() > exceptions_at_start_) abort_all(ExitCode::internal, "this rank left its work through an exception");
  finish(0);
}

void World::barrier() const {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Ibarrier(handles_->world.get(), &request));
  wait_for(request, {options_.collective_timeout_seconds, &handles_->peers, [] { return std::string("the world's barrier"); }});
}

std::int64_t World::sum(std::int64_t mine) const {
  std::int64_t all = mine;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Iallreduce(&mine, &all, 1, MPI_INT64_T, MPI_SUM, handles_->world.get(), &request));
  wait_for(request, {options_.collective_timeout_seconds, &handles_->peers, [] { return std::string("the world's sum"); }});
  return all;
}

std::vector<std::string> World::gather_text(std::string_view mine) const {
  std::size_t n = static_cast<std::size_t>(place_.ranks);
  WaitLimit limit{options_.collective_timeout_seconds, &handles_->peers, [] { return std::string("the world's gather of texts"); }};
  int length = static_cast<int>(mine.size());
  std::vector<int> lengths(n), offsets(n);
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Iallgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, handles_->world.get(), &request));
  wait_for(request, limit);
  for (std::size_t r = 1; r < n; ++r) offsets[r] = offsets[r - 1] + lengths[r - 1];
  std::string all(static_cast<std::size_t>(offsets[n - 1] + lengths[n - 1]), '\0');
  MPI_CHECK(MPI_Iallgatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(), MPI_CHAR, handles_->world.get(),
                            &request));
  wait_for(request, limit);
  std::vector<std::string> texts(n);
  for (std::size_t r = 0; r < n; ++r) texts[r] = all.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(lengths[r]));
  return texts;
}

std::string World::broadcast_text(std::string_view mine, int root) const {
  WaitLimit limit{options_.collective_timeout_seconds, &handles_->peers,
                  [root] { return fmt::format("the world's broadcast from rank {}", root); }};
  std::string text(place_.rank == root ? mine : std::string_view());
  int length = static_cast<int>(text.size());
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Ibcast(&length, 1, MPI_INT, root, handles_->world.get(), &request));
  wait_for(request, limit);
  text.resize(static_cast<std::size_t>(length));
  MPI_CHECK(MPI_Ibcast(text.data(), length, MPI_CHAR, root, handles_->world.get(), &request));
  wait_for(request, limit);
  return text;
}

namespace {

/// Of ranks that should be alike: the first that is not, of the same role, and all others like it.
struct Differing {
  std::size_t rank = 0, from = 0;
  std::string ranks, host;  ///< "1 on node7, 3 on node7"; where `from` is
};

/// From the digest, role and host of each rank; the same on all ranks.
std::optional<Differing> find_differing(const std::vector<std::string>& all) {
  struct Saying {
    std::string hash, role, host;
  };
  const auto parse = [](const std::string& text) {
    const std::size_t first = text.find(' '), second = text.find(' ', first + 1);
    return Saying{text.substr(0, first), text.substr(first + 1, second - first - 1), text.substr(second + 1)};
  };
  std::map<std::string, std::pair<std::size_t, Saying>> firsts;  // of each role
  for (std::size_t r = 0; r < all.size(); ++r) {
    const Saying said = parse(all[r]);
    const auto [first, fresh] = firsts.try_emplace(said.role, r, said);
    if (fresh || said.hash == first->second.second.hash) continue;
    Differing found{.rank = r, .from = first->second.first, .ranks = {}, .host = first->second.second.host};
    for (std::size_t k = r; k < all.size(); ++k)
      if (const Saying other = parse(all[k]); other.role == said.role && other.hash != first->second.second.hash)
        found.ranks += fmt::format("{}{} on {}", found.ranks.empty() ? "" : ", ", k, other.host);
    return found;
  }
  return {};
}

/// The first line of two texts that is not in both: of each its own, or "nothing".
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::size_t line = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()) && a[i] == b[i]; ++i)
    if (a[i] == '\n') line = i + 1;
  const auto at = [line](const std::string& text) {
    return line >= text.size() ? std::string("nothing") : fmt::format("\"{}\"", text.substr(line, text.find('\n', line) - line));
  };
  return {at(a), at(b)};
}

}  // namespace

void World::require_same(std::string_view what, const Hash128& mine, int role) const {
  if (const auto differing = find_differing(gather_text(fmt::format("{} {} {}", mine.hex(), role, place_.host))))
    throw AgreedError(
        ExitCode::environment,
        fmt::format("the {} of rank {} differs from that of rank {} on {}: all ranks must run the same binary with the same deck, "
                    "overrides and input files; compare the nodes",
                    what, differing->ranks, differing->from, differing->host),
        0);
}

void World::require_same_lines(std::string_view what, const std::vector<std::string>& mine, int role) const {
  const std::string text = fmt::format("{}\n", fmt::join(mine, "\n"));
  const auto differing = find_differing(gather_text(fmt::format("{} {} {}", hash_text(text).hex(), role, place_.host)));
  if (!differing) return;
  const bool asked = std::cmp_equal(place_.rank, differing->rank) || std::cmp_equal(place_.rank, differing->from);
  const std::vector<std::string> texts = gather_text(asked ? std::string_view(text) : std::string_view());
  const auto [theirs, first] = first_difference(texts[differing->rank], texts[differing->from]);
  throw AgreedError(
      ExitCode::internal,
      fmt::format("the {} of rank {} differs from that of rank {} on {}: the first difference is {} on rank {} and {} on rank "
                  "{}. Program, deck and input files of all ranks have been compared and are the same, so this is a defect of "
                  "Tessera; please report it with the deck and the number of ranks.",
                  what, differing->ranks, differing->from, differing->host, theirs, differing->rank, first, differing->from),
      0);
}

void World::require_like_rank_0(std::string_view mine, const std::function<std::string(const std::string&)>& differences) const {
  const std::string theirs = broadcast_text(mine);
  const std::vector<std::string> all = gather_text(theirs == mine ? "" : differences(theirs));
  for (const std::string& text : all)
    if (!text.empty()) throw AgreedError(ExitCode::environment, text, 0);
}

void World::require_same_program() const {
  const std::vector<std::string> all =
      gather_text(fmt::format("{}{}\n{}", options_.mixed_processors ? 1 : 0, place_.host, print_identity(options_.identity)));
  std::vector<Member> members;
  bool mixed = true;
  for (const std::string& text : all) {
    const std::size_t end = text.find('\n');
    mixed = mixed && text[0] == '1';
    members.push_back({static_cast<int>(members.size()), text.substr(1, end - 1), parse_identity(std::string_view(text).substr(end + 1))});
  }
  if (const std::string text = identity_differences(members, mixed); !text.empty()) throw AgreedError(ExitCode::environment, text, 0);
}

void World::together(const std::function<void()>& part) const {
  int code = 0;
  std::string message;
  try {
    part();
  } catch (const std::exception&) {
    const Error error = current_error();
    code = static_cast<int>(error.code), message = error.what();
  }
  // A digit each first: on the common way, where nobody failed, that is the whole cost.
  int first = code ? place_.rank : place_.ranks, agreed = place_.ranks;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Iallreduce(&first, &agreed, 1, MPI_INT, MPI_MIN, handles_->world.get(), &request));
  wait_for(request, {options_.collective_timeout_seconds, &handles_->peers, [] { return std::string("the world's agreement"); }});
  if (agreed == place_.ranks) return;
  std::string text = broadcast_text(fmt::format("{:3}{}", code, message), agreed);
  throw AgreedError(static_cast<ExitCode>(std::atoi(text.substr(0, 3).c_str())), text.substr(3), agreed);
}

int World::finish(int status) {
  finished_ = true;
  explain_aborts(nullptr, place_.rank);  // from here on others may end as they should
  std::fflush(nullptr);
  int highest = status;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Iallreduce(&status, &highest, 1, MPI_INT, MPI_MAX, handles_->world.get(), &request));
  wait_for(request, {.seconds = options_.collective_timeout_seconds,
                     .peers = &handles_->peers,
                     .what = [] { return std::string("the end of the run"); },
                     .may_end = true});
  if (place_.rank == 0)
    report_end(highest);
  else
    leave_end_report_to_others();
  handles_->peers.set_watch(nullptr);
  handles_->watch.reset();
  // From here all work of all ranks is done, so leaving without MPI_Finalize loses nothing.
  int launcher_socket = environment("PMI_FD") ? environment_number("PMI_FD") : -1;
  ExitTimer timer(options_.finalize_timeout_seconds,
                  [=, stuck = pthread_self()] { leave_without_finalize(stuck, launcher_socket, highest); });
  handles_.reset();
  MPI_CHECK(MPI_Finalize());
  return highest;
}

void World::abort_all(ExitCode code, const std::string& message) const {
  int status = code == ExitCode::ok ? static_cast<int>(ExitCode::internal) : static_cast<int>(code);
  ExitTimer timer(abort_grace_seconds, [status] { end_process(status); });
  int nobody = 0;
  if (Failure* failure = handles_ ? handles_->failure() : nullptr; failure && !failure->code.compare_exchange_strong(nobody, status)) {
    // Another rank of this node speaks and ends us; should it not manage to, we follow with its status.
    leave_end_report_to_others();
    std::this_thread::sleep_for(std::chrono::duration<double>(abort_grace_seconds / 2));
    end_process(nobody);
  }
  if (handles_ && handles_->watch && !handles_->watch->take_floor(status)) {
    // A rank of another node speaks.
    leave_end_report_to_others();
    std::this_thread::sleep_for(std::chrono::duration<double>(abort_grace_seconds / 2));
    end_process(status);
  }
  report_end(status);  // before any other rank can notice, and report what follows from this
  log_line(LogLevel::error, message);
  std::fflush(nullptr);
  drain_standard_error();
  if (started_by_srun() && handles_ && handles_->watch) _exit(status);  // the others have been told
  // What MPI and its transports say while they are torn down would stand below the cause.
  if (int null = open("/dev/null", O_WRONLY | O_CLOEXEC); null >= 0) dup2(null, STDERR_FILENO);
  MPI_Abort(MPI_COMM_WORLD, status);
  end_process(status);
}

std::string World::map_of_ranks() const {
  std::vector<int> all(hosts_.size());
  std::iota(all.begin(), all.end(), 0);
  const std::string named = name_ranks(all, hosts_);
  return named.substr(named.find(' ') + 1);
}

void World::describe_work(std::function<std::string()> describe) const {
  if (handles_->watch) handles_->watch->whereabouts().set_work(std::move(describe));
}

std::string name_mpi(std::string_view library_text) {
  constexpr std::string_view word = " Version", between = " \t:";
  const std::string_view line = library_text.substr(0, library_text.find_first_of(",\n"));
  const std::size_t at = line.find(word), number = at == line.npos ? at : line.find_first_not_of(between, at + word.size());
  if (number == line.npos) return std::string(line);
  return fmt::format("{} {}", line.substr(0, at), line.substr(number));
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_CHECK(MPI_Get_library_version(text, &length));
  return name_mpi({text, static_cast<std::size_t>(length)});
}

int run_in_world(const WorldOptions& options, const std::function<int(World&)>& body) {
  try {
    World world(options);
    try {
      int status = 0;
      try {
        world.require_same_program();
        status = body(world);
      } catch (const AgreedError& error) {
        // To be stopped is no fault. Info lines are rank 0's; the request may have come to another one.
        if (error.code == ExitCode::interrupted)
          info("{}", error.what());
        else if (world.rank() == error.speaker)
          log_line(LogLevel::error, error.what());
        status = static_cast<int>(error.code);
      }
      return world.finish(status);
    } catch (const std::exception&) {
      const Error error = current_error();
      world.abort_all(error.code, error.what());
    }
  } catch (const Error& error) {
    // The world could not be made. Others may wait for it.
    report_end(static_cast<int>(error.code));
    log_launch_identity();
    log_line(LogLevel::error, error.what());
    int finalized = 0;
    if (MPI_Finalized(&finalized) == MPI_SUCCESS && !finalized) drain_standard_error(), tell_launcher(static_cast<int>(error.code));
    return static_cast<int>(error.code);
  }
}

}  // namespace tessera
