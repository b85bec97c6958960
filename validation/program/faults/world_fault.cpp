// A program that fails in the way its argument names, so that world_faults.py can watch how a run ends.
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "base/end_report.hpp"
#include "base/log.hpp"
#include "deck/environment.hpp"
#include "topology/communicators/make_communicator.hpp"
#include "topology/failure/signals.hpp"

namespace tessera {
namespace {

std::unique_ptr<Communicator> communicator(const World& world, const Node& node, CommunicatorPath path) {
  return make_communicator(world, group_of({{1, 1, world.ranks(), 1, 1, 1}}, data_axes, world.rank()),
                           {.lane = "reduce", .node = &node, .path = path});
}

/// What the ranks that do not fail do: wait for the others in a collective, as training does.
int wait_for_ever(Communicator& comm) {
  float value = 1;
  while (true) comm.all_reduce(&value, 1, DType::f32);
}

/// The first rank's wait fails, and it takes its time to say so; the last one's fails meanwhile, and is told where the first one was.
int wait_apart(Communicator& comm, int rank, int ranks) {
  struct SlowToEnd {
    bool slow;
    ~SlowToEnd() {
      if (slow) sleep(3600);
    }
  } slow{rank == 0};
  if (rank + 1 == ranks) usleep(500000);
  return wait_for_ever(comm);
}

/// Returns when that process has ended, whether or not somebody has asked for its status.
void wait_for_end_of(pid_t pid) {
  while (true) {
    std::ifstream file(fmt::format("/proc/{}/stat", pid));
    std::stringstream text;
    text << file.rdbuf();
    const std::string stat = text.str();
    const std::size_t state = stat.rfind(") ");
    if (state == std::string::npos || stat[state + 2] == 'Z' || stat[state + 2] == 'X') return;
    usleep(1000);
  }
}

/// Returns when that thread of this process has computed for so long: a thread that waits for a message does, by looking for it.
void wait_for_work_of(pthread_t thread, double seconds) {
  clockid_t clock;
  pthread_getcpuclockid(thread, &clock);
  const auto now = [clock] {
    timespec time;
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  for (const double begin = now(); now() - begin < seconds;) usleep(1000);
}

/// Rank 1 dies while what it sends still lies in its memory; the others ask for it afterwards.
void send_and_die(Communicator& comm, bool failing, pid_t sender) {
  std::vector<float> values(std::size_t{1} << 18);
  const auto send = [&] { comm.broadcast(values.data(), static_cast<std::int64_t>(values.size()), DType::f32, 1); };
  send();  // ranks meet: UCX reads another's memory from the second message on
  if (failing)
    std::thread([main = pthread_self()] {
      wait_for_work_of(main, 0.05);
      kill(getpid(), SIGKILL);
    }).detach();
  else
    wait_for_end_of(sender);
  send();
}

/// Ranks that end by SIGABRT, one after the other, and never meet again. The last one is killed before where `fault` says so.
[[noreturn]] void abort_apart(const std::string& fault, int rank, const std::vector<pid_t>& pids) {
  const bool beside_kill = fault.ends_with("-beside-kill");
  if (beside_kill && rank + 1 == std::ssize(pids)) raise(SIGKILL);
  if (beside_kill) wait_for_end_of(pids.back());
  if (rank > 0) wait_for_end_of(pids[static_cast<std::size_t>(rank - 1)]);
  // From another process, as timeout or scancel sends it.
  if (fault.starts_with("abort-from-outside") && std::system(fmt::format("kill -ABRT {}", getpid()).c_str()) == 0) sleep(3600);
  std::abort();
}

int run(World& world, const std::string& fault) {
  take_stop_signals();  // as the trainer does
  Node node(world);
  bool over_mpi = fault.ends_with("-over-mpi"), failing = world.rank() == 1;
  auto comm = communicator(world, node, over_mpi ? CommunicatorPath::mpi : CommunicatorPath::fastest);
  std::string kind = over_mpi ? fault.substr(0, fault.find("-over-mpi")) : fault;
  fmt::print("pid {}\n", getpid());
  std::fflush(stdout);
  std::vector<pid_t> pids;
  for (const std::string& pid : world.gather_text(std::to_string(getpid()))) pids.push_back(std::stoi(pid));
  info("training");
  if (kind == "none") return 0;
  if (kind == "status") return failing ? static_cast<int>(ExitCode::checkpoint) : 0;
  if (kind == "together") {
    // Every rank sees the same fault, as with a deck that all of them read.
    world.together([] { fail(ExitCode::usage, "deck.toml:3: zero.stage = 7 is not in 0..3"); });
  }
  if (kind == "together-one")
    world.together([&] {
      if (failing) fail(ExitCode::data, "train.h5 cannot be opened");
    });
  if (kind == "stop-first" && world.rank() == 0) raise(SIGSTOP);
  if (kind == "kill-sending") send_and_die(*comm, failing, pids[1]);
  if (kind.starts_with("abort-")) abort_apart(kind, world.rank(), pids);
  if (kind == "everybody") fail(ExitCode::numerics, "the loss is not finite at step 3");
  if (kind == "lane" && failing) {
    // A lane's thread fails while the main thread waits in a collective of its own.
    std::thread([&, main = pthread_self()] {
      wait_for_work_of(main, 0.01);
      world.abort_all(ExitCode::storage, "shard-00001.h5: no space left on device");
    }).detach();
  } else if (failing) {
    if (kind == "throw") fail(ExitCode::data, "train.h5: token 70000 at position 12 is above the vocabulary");
    if (kind == "exception") throw std::runtime_error("something else went wrong");
    if (kind == "kill") raise(SIGKILL);
    if (kind.starts_with("stall")) sleep(3600);
    if (kind == "stop") raise(SIGSTOP);
  }
  return kind == "stall-apart" ? wait_apart(*comm, world.rank(), world.ranks()) : wait_for_ever(*comm);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  std::string fault = argc >= 2 ? argv[1] : "";
  tessera::prepare_end_report(tessera::environment("TESSERA_STATUS_FILE").value_or(""));
  tessera::watch_stop_signals();
  // The start of a busy machine's ranks must not pass it.
  const double limit = fault.starts_with("stall") || fault.starts_with("stop") ? 4 : 300;
  const tessera::StartOptions start{
      .timeout_seconds = fault == "absent" ? 3 : 300.0, .say_seconds = 1, .run_folder = argc == 3 ? argv[2] : ""};
  return tessera::run_in_world({.collective_timeout_seconds = limit, .finalize_timeout_seconds = 6, .start = start},
                               [&](tessera::World& world) { return tessera::run(world, fault); });
}
