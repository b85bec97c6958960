#include "topology/world.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "base/current_error.hpp"
#include "base/end_report.hpp"
#include "base/log.hpp"
#include "deck/environment.hpp"
#include "topology/failure/leave.hpp"
#include "topology/launch_handles.hpp"
#include "topology/make_watch.hpp"
#include "topology/world_handles.hpp"

namespace tessera {
namespace {

constexpr double abort_grace_seconds = 5;

[[noreturn]] void end_process(int status) {
  tell_launcher(status);
  _exit(status);
}

/// By rank the lowest one on its node. With TESSERA_RANKS_PER_NODE a node counts as several, of so many consecutive ranks each: what
/// happens between nodes can be tried on one.
std::vector<int> leaders_of(std::vector<int> leaders, int ranks) {
  leaders.resize(static_cast<std::size_t>(ranks));
  const auto pretended = environment("TESSERA_RANKS_PER_NODE");
  if (!pretended) return leaders;
  const int size = environment_number("TESSERA_RANKS_PER_NODE");
  if (size < 1) fail(ExitCode::environment, "TESSERA_RANKS_PER_NODE={} is not a number of ranks", *pretended);
  std::map<int, std::pair<int, int>> last;  // of each true node: its ranks so far, and who leads the present part of it
  for (int rank = 0; rank < ranks; ++rank) {
    auto& [count, leader] = last[leaders[static_cast<std::size_t>(rank)]];
    if (count++ % size == 0) leader = rank;
    leaders[static_cast<std::size_t>(rank)] = leader;
  }
  return leaders;
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace

World::World(Launch& launch, int ranks, const WorldOptions& options)
    : launch_(launch), options_(options), exceptions_at_start_(std::uncaught_exceptions()) {
  TESSERA_REQUIRE(launch.rank() < ranks && ranks <= launch.ranks(), "rank {} in a world of {} of {} ranks", launch.rank(), ranks,
                  launch.ranks());
  place_.rank = launch.rank(), place_.ranks = ranks;
  log_identity(place_.rank, place_.ranks);
  handles_ = std::make_unique<Handles>();
  handles_->world = OwnedComm(duplicate(launch.handles_->first(ranks)));

  const std::vector<int> leaders = leaders_of(launch.handles_->leaders, ranks);
  const int leader = leaders[static_cast<std::size_t>(place_.rank)];
  std::vector<int> members;
  std::set<int> nodes;
  for (int rank = 0; rank < ranks; ++rank) {
    const int other = leaders[static_cast<std::size_t>(rank)];
    nodes.insert(other);
    if (other == leader) members.push_back(rank);
  }
  handles_->node = OwnedComm(comm_of(handles_->world.get(), members, 0));
  place_.local_ranks = static_cast<int>(members.size());
  place_.local_rank = static_cast<int>(std::ranges::lower_bound(members, place_.rank) - members.begin());
  place_.nodes = static_cast<int>(nodes.size());
  place_.node = static_cast<int>(std::distance(nodes.begin(), nodes.find(leader)));

  const MPI_Comm comm = handles_->node.get();
  handles_->peers = Peers(comm, place_.rank);
  std::string reason;
  handles_->block = make_shared_block(comm, Handles::block_bytes(place_.local_ranks), true, reason);
  handles_->peers.share(handles_->floor(), handles_->marks());

  place_.host = host_name();
  hosts_ = gather_text(place_.host);
  log_identity(place_.rank, place_.ranks, place_.nodes > 1 ? place_.host : "");
  if (place_.ranks > 1) handles_->watch = make_watch(*this, hosts_, leaders);
  handles_->peers.set_watch(handles_->watch.get());
  // Last: were anything to throw after it, the handler would be left with what is freed. Without marks or a watch nobody can tell who was
  // lost.
  if (handles_->watch && (handles_->marks() || place_.local_ranks == 1)) explain_aborts(&handles_->peers, place_.rank);
  launch_.stands();
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
    throw AgreedError(ExitCode::environment,
                      fmt::format("the {} of rank {} differs from that of rank {} on {}: all ranks must run the same binary with the same "
                                  "deck, overrides and input files; compare the nodes",
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
      fmt::format(
          "the {} of rank {} differs from that of rank {} on {}: the first difference is {} on rank {} and {} on rank {}. All ranks have "
          "the same program, deck and input files, so this is a defect of Tessera; please report it with the deck and the number of ranks.",
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
  for (auto end = handles_->ends.rbegin(); end != handles_->ends.rend(); ++end) (*end)();
  handles_.reset();
  log_identity(launch_.rank(), launch_.ranks());
  return highest;
}

void World::abort_all(ExitCode code, const std::string& message) const {
  int status = code == ExitCode::ok ? static_cast<int>(ExitCode::internal) : static_cast<int>(code);
  ExitTimer timer(abort_grace_seconds, [status] { end_process(status); });
  if (handles_ && !handles_->peers.become_speaker(status)) {
    // Another rank has spoken and ends us; should it not manage to, we follow with the status of the first of this node.
    leave_end_report_to_others();
    std::this_thread::sleep_for(std::chrono::duration<double>(abort_grace_seconds / 2));
    end_process(handles_->peers.first_status(status));
  }
  report_end(status);  // before any other rank can notice, and report what follows from this
  log_line(LogLevel::error, message);
  std::fflush(nullptr);
  if (handles_) handles_->peers.has_spoken();
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

void World::at_end(std::function<void()> part) const { handles_->ends.push_back(std::move(part)); }

void World::describe_work(std::function<RankWork()> describe) const {
  if (handles_->watch) handles_->watch->whereabouts().set_work(std::move(describe));
}

void World::watch_progress(const WatchdogOptions& options) const {
  if (handles_->watch) handles_->watch->watch_progress(options, [this](const std::string& cause) { abort_all(ExitCode::lost, cause); });
}

std::vector<Straggler> World::take_stragglers() const {
  return handles_->watch ? handles_->watch->take_stragglers() : std::vector<Straggler>();
}

AwaitedRanks World::awaited_since(double begin) const { return handles_->watch ? handles_->watch->awaited_since(begin) : AwaitedRanks(); }

std::vector<Spent> World::spent_of_ranks() const { return handles_->watch ? handles_->watch->spent_of_ranks() : std::vector<Spent>(); }

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

namespace {

int run_in(Launch& launch, const WorldOptions& options, const std::function<int(World&)>& body) {
  World world(launch, launch.chosen(), options);
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
}

}  // namespace

int run_in_world(const WorldOptions& options, const std::function<int(World&)>& body) {
  try {
    if (Launch* launch = Launch::current()) return run_in(*launch, options, body);
    Launch launch(options.start);
    const int status = run_in(launch, options, body);
    launch.end(status, options.finalize_timeout_seconds);
    return status;
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
