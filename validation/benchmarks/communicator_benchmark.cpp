// Collectives inside a node against two limits measured in the same run: a copy of as many bytes by as many ranks at the same time, and
// MPICH's own collectives.
//   mpiexec -n 2 communicator_benchmark [--mib 64] [--repeat 12] [--json]
// Times are the slowest rank's, of the fastest repetition; the contenders take turns, since the speed of shared machines drifts.
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>
#include "base/json.hpp"

#include "base/clock.hpp"
#include "memory/arena.hpp"
#include "topology/communicators/copy.hpp"
#include "topology/communicators/make_communicator.hpp"

namespace tessera {
namespace {

struct Settings {
  std::int64_t mib = 64;
  int repeat = 12;
  bool json = false;
};

struct Contender {
  std::string name;
  double moved_bytes;  // that count for bytes/s: the collective's larger buffer
  std::function<void()> run;
  double best_seconds = std::numeric_limits<double>::infinity();
};

double slowest(double seconds) {
  double most = 0;
  MPI_Allreduce(&seconds, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return most;
}

void measure(std::vector<Contender>& contenders, Communicator& gate, int repeat, int calls) {
  for (int turn = -1; turn < repeat; ++turn)
    for (auto& contender : contenders) {
      gate.barrier();
      double start = now_seconds();
      for (int call = 0; call < calls; ++call) contender.run();
      gate.barrier();
      double seconds = slowest(now_seconds() - start) / calls;
      if (turn >= 0) contender.best_seconds = std::min(contender.best_seconds, seconds);
    }
}

/// One line of the table: ours, the copy, MPICH.
Json row(const std::string& name, const Contender& ours, double copy_seconds, const Contender& mpich) {
  return {{"collective", name},
          {"seconds", ours.best_seconds},
          {"bytes_per_second", ours.moved_bytes / ours.best_seconds},
          {"of_memcpy", copy_seconds / ours.best_seconds},
          {"times_mpich", mpich.best_seconds / ours.best_seconds},
          {"mpich_seconds", mpich.best_seconds}};
}

Json measure_large(Communicator& comm, Arena& arena, const Settings& settings) {
  std::int64_t bytes = settings.mib << 20, count = bytes / comm.size() / 4, block = count * 4;
  std::byte *large = arena.data(), *small = arena.data() + bytes;
  std::vector<std::byte> heap_large(static_cast<std::size_t>(bytes)), heap_small(static_cast<std::size_t>(block));
  double n = comm.size();
  // Bytes that pass the memory bus of one rank: a gather reads and writes every block once; a scatter reads n blocks and writes one.
  auto gathered = static_cast<std::size_t>(block * comm.size()), scattered = static_cast<std::size_t>(block * (comm.size() + 1) / 2);
  std::byte* copied = arena.data() + bytes;
  MPI_Comm mpich = MPI_COMM_WORLD;
  int c = static_cast<int>(count);
  std::vector<Contender> all = {
      {"memcpy of a gather's bytes", double(gathered), [&] { std::memcpy(copied, large, gathered); }},
      {"streaming copy of a gather's bytes", double(gathered), [&] { copy_block(copied, large, gathered); }},
      {"memcpy of a scatter's bytes", double(scattered), [&] { std::memcpy(copied, large, scattered); }},
      {"streaming copy of a scatter's bytes", double(scattered), [&] { copy_block(copied, large, scattered); }},
      {"all_gather", n * double(block), [&] { comm.all_gather(large, small, count, DType::f32); }},
      {"reduce_scatter", n * double(block), [&] { comm.reduce_scatter(small, large, count, DType::f32); }},
      {"all_reduce", n * double(block), [&] { comm.all_reduce(large, count * comm.size(), DType::f32); }},
      {"all_gather, window", n * double(block), [&] { comm.all_gather(heap_large.data(), heap_small.data(), count, DType::f32); }},
      {"reduce_scatter, window", n * double(block), [&] { comm.reduce_scatter(heap_small.data(), heap_large.data(), count, DType::f32); }},
      {"MPI_Allgather", n * double(block), [&] { MPI_Allgather(small, c, MPI_FLOAT, large, c, MPI_FLOAT, mpich); }},
      {"MPI_Reduce_scatter_block", n * double(block), [&] { MPI_Reduce_scatter_block(large, small, c, MPI_FLOAT, MPI_SUM, mpich); }},
      {"MPI_Allreduce", n * double(block), [&] { MPI_Allreduce(MPI_IN_PLACE, large, c * comm.size(), MPI_FLOAT, MPI_SUM, mpich); }},
  };
  measure(all, comm, settings.repeat, 1);
  double gather_copy = std::min(all[0].best_seconds, all[1].best_seconds);
  double scatter_copy = std::min(all[2].best_seconds, all[3].best_seconds);
  Json rows = Json::array();
  rows.push_back(row("all_gather", all[4], gather_copy, all[9]));
  rows.push_back(row("reduce_scatter", all[5], scatter_copy, all[10]));
  // A reduce-scatter and a gather of the others' blocks.
  rows.push_back(row("all_reduce", all[6], scatter_copy + gather_copy * (n - 1) / n, all[11]));
  rows.push_back(row("all_gather, window", all[7], gather_copy, all[9]));
  rows.push_back(row("reduce_scatter, window", all[8], scatter_copy, all[10]));
  Json copies = {{"memcpy_bytes_per_second", double(gathered) / all[0].best_seconds},
                 {"streaming_copy_bytes_per_second", double(gathered) / all[1].best_seconds}};
  return {{"bytes", bytes}, {"copy_per_rank", copies}, {"collectives", rows}};
}

Json measure_small(Communicator& comm, Communicator& over_mpi, int repeat) {
  std::vector<float> values(256, 0.0f);
  auto n = static_cast<std::int64_t>(values.size());
  std::vector<Contender> all = {
      {"ours", 1024, [&] { comm.all_reduce(values.data(), n, DType::f32); }},
      {"ours over MPI", 1024, [&] { over_mpi.all_reduce(values.data(), n, DType::f32); }},
      {"MPICH", 1024, [&] { MPI_Allreduce(MPI_IN_PLACE, values.data(), 256, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }},
  };
  measure(all, comm, std::min(repeat, 4), 20);
  return {{"elements", n},
          {"seconds", all[0].best_seconds},
          {"over_mpi_seconds", all[1].best_seconds},
          {"mpich_seconds", all[2].best_seconds},
          {"times_mpich", all[2].best_seconds / all[0].best_seconds}};
}

void print_table(const Json& result) {
  fmt::print("{} ranks, {} path, {} MiB fp32; a copy by every rank at once: memcpy {:.1f} GB/s, streaming {:.1f} GB/s per rank\n",
             result["ranks"].get<int>(), result["path"].get<std::string>(), result["large"]["bytes"].get<std::int64_t>() >> 20,
             result["large"]["copy_per_rank"]["memcpy_bytes_per_second"].get<double>() / 1e9,
             result["large"]["copy_per_rank"]["streaming_copy_bytes_per_second"].get<double>() / 1e9);
  fmt::print("{:<24} {:>10} {:>10} {:>16} {:>12} {:>12}\n", "collective", "ms", "GB/s", "of best copy", "MPICH ms", "x MPICH");
  for (const auto& line : result["large"]["collectives"])
    fmt::print("{:<24} {:>10.2f} {:>10.2f} {:>15.0f}% {:>12.2f} {:>12.2f}\n", line["collective"].get<std::string>(),
               line["seconds"].get<double>() * 1e3, line["bytes_per_second"].get<double>() / 1e9, line["of_memcpy"].get<double>() * 100,
               line["mpich_seconds"].get<double>() * 1e3, line["times_mpich"].get<double>());
  const auto& small = result["small"];
  fmt::print("all_reduce of 256 fp32: {:.1f} us, our MPI path {:.1f} us, MPICH {:.1f} us ({:.1f} x)\n",
             small["seconds"].get<double>() * 1e6, small["over_mpi_seconds"].get<double>() * 1e6,
             small["mpich_seconds"].get<double>() * 1e6, small["times_mpich"].get<double>());
}

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    std::string option = argv[i];
    if (option == "--json")
      settings.json = true;
    else if (option == "--mib" && i + 1 < argc)
      settings.mib = std::atoi(argv[++i]);
    else if (option == "--repeat" && i + 1 < argc)
      settings.repeat = std::atoi(argv[++i]);
    else
      fail(ExitCode::usage, "unknown option {}: communicator_benchmark [--mib 64] [--repeat 12] [--json]", option);
  }
  if (settings.mib < 1 || settings.repeat < 1) fail(ExitCode::usage, "--mib and --repeat take a number above 0");
  return settings;
}

int run(World& world, int argc, char** argv) {
  Settings settings;
  world.together([&] { settings = parse(argc, argv); });
  const Group all = group_of({{1, 1, world.ranks(), 1, 1, 1}}, data_axes, world.rank());
  Node node(world);
  // Both buffers of a call: a whole and, for the copies, a second whole.
  Arena arena(Tier::shared, static_cast<std::size_t>(settings.mib) << 21, "benchmark");
  node.register_arena(arena);
  auto comm = make_communicator(world, all, {.node = &node});
  auto over_mpi = make_communicator(world, all, {.path = CommunicatorPath::mpi});
  Json result = {{"ranks", world.ranks()}, {"path", comm->path()}};
  result["small"] = measure_small(*comm, *over_mpi, settings.repeat);
  result["large"] = measure_large(*comm, arena, settings);
  if (world.rank() == 0) {
    if (settings.json)
      fmt::print("{}\n", result.dump(2));
    else
      print_table(result);
  }
  comm.reset(), over_mpi.reset();
  node.unregister_arena(arena);
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::run_in_world({}, [&](tessera::World& world) { return tessera::run(world, argc, argv); });
}
