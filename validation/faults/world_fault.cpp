// A program that fails in the way its argument names, so that world_faults.py can watch how a run ends.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "topology/make_communicator.hpp"
#include "topology/signals.hpp"

namespace tessera {
namespace {

std::unique_ptr<Communicator> communicator(const World& world, const Node& node, CommunicatorPath path) {
  return make_communicator(world, {{1, world.ranks(), 1, 1, 1}}, Axis::dp, {.lane = "reduce", .node = &node, .path = path});
}

/// What the ranks that do not fail do: wait for the others in a collective, as training does.
int wait_for_ever(Communicator& comm) {
  float value = 1;
  while (true) comm.all_reduce(&value, 1, DType::f32);
}

/// Rank 1 dies while what it sends still lies in its memory; the others ask for it afterwards.
void send_and_die(Communicator& comm, bool failing) {
  std::vector<float> values(std::size_t{1} << 18);
  const auto send = [&] { comm.broadcast(values.data(), static_cast<std::int64_t>(values.size()), DType::f32, 1); };
  send();  // ranks meet: UCX reads another's memory from the second message on
  if (failing)
    std::thread([] {
      usleep(300000);
      raise(SIGKILL);
    }).detach();
  else
    usleep(600000);
  send();
}

/// Ranks that end by SIGABRT, a while apart, and never meet again. The last one is killed before where `fault` says so.
[[noreturn]] void abort_apart(const std::string& fault, int rank, int ranks) {
  if (fault.ends_with("-beside-kill") && rank == ranks - 1) raise(SIGKILL);
  usleep(200000U * static_cast<unsigned>(rank + 1));
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
  world.barrier();
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
  if (kind == "kill-sending") send_and_die(*comm, failing);
  if (kind.starts_with("abort-")) abort_apart(kind, world.rank(), world.ranks());
  usleep(100000);  // lines written in the same instant may reach the launcher in any order
  if (kind == "everybody") fail(ExitCode::numerics, "the loss is not finite at step 3");
  if (kind == "lane" && failing) {
    // A lane's thread fails while the main thread waits in a collective of its own.
    std::thread([&] {
      usleep(200000);
      world.abort_all(ExitCode::storage, "shard-00001.h5: no space left on device");
    }).detach();
  } else if (failing) {
    usleep(200000);
    if (kind == "throw") fail(ExitCode::data, "train.h5: token 70000 at position 12 is above the vocabulary");
    if (kind == "exception") throw std::runtime_error("something else went wrong");
    if (kind == "kill") raise(SIGKILL);
    if (kind == "stall") sleep(3600);
  }
  return wait_for_ever(*comm);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  std::string fault = argc == 2 ? argv[1] : "";
  tessera::watch_stop_signals();
  double limit = fault.starts_with("stall") ? 1.5 : 60;
  return tessera::run_in_world({.collective_timeout_seconds = limit, .finalize_timeout_seconds = 2},
                               [&](tessera::World& world) { return tessera::run(world, fault); });
}
