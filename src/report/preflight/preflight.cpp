#include "report/preflight/preflight.hpp"

#include <algorithm>
#include <filesystem>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "io/files/path_state.hpp"
#include "memory/runtime.hpp"
#include "report/nodes/look.hpp"
#include "report/preflight/health.hpp"
#include "report/preflight/measure_exchange.hpp"
#include "report/preflight/measure_folder.hpp"
#include "report/preflight/measure_work.hpp"
#include "schedule/run/disk.hpp"
#include "topology/devices/binding.hpp"
#include "topology/devices/gpu_binding.hpp"
#include "train/engine/device.hpp"

namespace tessera {
namespace {

/// Of the time.
constexpr double work_share = 0.4, exchange_share = 0.4, disk_share = 0.2;

/// A run makes its folder; until then what counts is the disk that it will be on.
std::string nearest_folder(const std::string& path) {
  for (std::filesystem::path at = std::filesystem::path(path).lexically_normal(); !at.empty(); at = at.parent_path()) {
    if (!io::look_at(at.string()).nothing()) return at.string();
    if (at == at.parent_path()) break;
  }
  return ".";
}

NodeHealth health_of_node(const World& world, const NodeRoots& roots) {
  if (world.place().local_rank != 0) return {};
  NodeHealth health = read_health(roots);
  health.gpus = view_of_driver().health;
  return health;
}

std::string pack(const std::vector<PreflightFinding>& findings) {
  Json out = Json::array();
  for (const PreflightFinding& f : findings) out.push_back({f.where, f.what});
  return out.dump(-1, BadText::replace);
}

std::vector<RankMeasures> of_all(const World& world, const RankMeasures& mine) {
  std::vector<RankMeasures> ranks;
  for (const std::string& text : world.gather_text(pack(mine))) ranks.push_back(unpack_measures(text));
  return ranks;
}

bool has_slow(const PreflightJudgement& judgement) {
  return std::ranges::find(judgement.findings, PreflightFinding::Kind::slow, &PreflightFinding::kind) != judgement.findings.end();
}

}  // namespace

std::vector<std::string> folders_of(const Deck& deck) {
  std::vector<std::string> folders = {nearest_folder(deck.run.output_dir)};
  const auto add = [&](const std::string& folder) {
    if (std::ranges::find(folders, folder) == folders.end()) folders.push_back(folder);
  };
  if (!deck.checkpoint.staging.empty()) add(nearest_folder(deck.checkpoint.staging));
  if (uses_disks(deck))
    for (const std::string& folder : spill_options(deck, 0).folders) add(folder);
  return folders;
}

PreflightVerdict run_preflight(const World& world, const PreflightOptions& options) {
  const double begin = now_seconds();
  const auto progress = [&](const std::string& what) { info("preflight: {} ({:.0f} s)", what, now_seconds() - begin); };

  // 1. What there is: nodes, their health, a device for each rank.
  progress("nodes");
  const std::vector<NodeAround> nodes = look_at_nodes(world, options.roots);
  const NodeHealth before = health_of_node(world, options.roots);
  ParsedDeck asked;
  asked.deck.run.device = options.device;
  choose_device(world, asked);
  const bool gpu = asked.deck.run.device == RunDevice::cuda;
  const Binding binding = bind_process(world);
  const GpuBinding bound = gpu ? bind_gpu(world, binding, options.share_gpu) : GpuBinding{};
  const KernelRuntime runtime(options.threads > 0 ? options.threads : binding.threads, spaces_of(asked.deck.run.device), bound.device);

  // 2. What each rank reaches. The health of its node is asked right after work, before anything has cooled down.
  std::vector<PreflightFinding> health;
  const kernels::Backend backend = gpu ? kernels::Backend::cuda : kernels::Backend::host;
  const auto measure = [&] {
    RankMeasures mine{world.place().host, {}};
    Bench bench(world, backend, work_bytes(backend));
    measure_work(bench, work_share * options.seconds, progress, mine);
    if (world.place().local_rank == 0)
      health = judge_health(nodes[static_cast<std::size_t>(world.place().node)].name, before, health_of_node(world, options.roots),
                            options.keys);
    measure_exchange(bench, exchange_share * options.seconds, progress, mine);
    if (!options.folders.empty()) progress("folders");
    world.barrier();
    for (const std::string& folder : options.folders)
      measure_folder(folder, disk_share * options.seconds / static_cast<double>(options.folders.size()), options.keys.least_free(), mine);
    return mine;
  };
  RankMeasures mine = measure();
  std::vector<RankMeasures> ranks = of_all(world, mine);
  // What came between once comes hardly twice: who is named has been slow both times.
  if (const bool again = has_slow(judge(ranks, options.keys)); world.broadcast_text(again ? "again" : "") == "again") {
    progress("once more, because a rank was slow");
    mine = faster_of(mine, measure());
    ranks = of_all(world, mine);
  }

  // 3. The verdict.
  PreflightVerdict verdict{.map = world.map_of_ranks(), .nodes = world.place().nodes, .judgement = judge(ranks, options.keys)};
  for (const RankMeasures& rank : ranks) verdict.hosts.push_back(rank.host);
  for (const std::string& text : world.gather_text(pack(health)))
    for (const Json& f : Json::parse(text))
      verdict.judgement.findings.push_back({.kind = PreflightFinding::Kind::health, .where = f[0], .what = f[1]});
  verdict.differences = compare_nodes(nodes);
  verdict.differences_count = options.keys.same_nodes;
  verdict.seconds = now_seconds() - begin;
  return verdict;
}

}  // namespace tessera
