#include "supervise/launch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "base/check.hpp"
#include "topology/failure/start.hpp"

namespace tessera {
namespace {

using Names = std::vector<std::string>;

Names words_of_text(const std::string& text) {
  std::istringstream in(text);
  Names words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

Names without_repeats(const Names& names) {
  Names once;
  for (const std::string& name : names)
    if (!name.empty() && std::find(once.begin(), once.end(), name) == once.end()) once.push_back(name);
  return once;
}

/// The first word of each line, without the slots that some launchers write beside it: "n1:8", "n1 slots=8".
Names hosts_of_file(const std::string& text) {
  std::istringstream in(text);
  Names hosts;
  for (std::string line; std::getline(in, line);) {
    const Names words = words_of_text(line);
    if (!words.empty() && words[0][0] != '#') hosts.push_back(words[0].substr(0, words[0].find(':')));
  }
  return without_repeats(hosts);
}

bool is_srun(const std::string& program) { return program.substr(program.rfind('/') + 1) == "srun"; }

/// As slurm/common.sh starts ranks, and says why; and beside what an earlier step may still hold where a node of it is gone.
Names srun_words(const WhereToLaunch& where) {
  Names words{"srun",      "--export=ALL",         "--mpi=" + (where.slurm_mpi.empty() ? "pmi2" : where.slurm_mpi),
              "--wait=30", "--kill-on-bad-exit=0", "--cpus-per-task=" + (where.slurm_cores.empty() ? "1" : where.slurm_cores)};
  for (const char* newer : {"--oom-kill-step", "--overlap"})
    if (where.srun_has(newer)) words.emplace_back(newer == std::string("--overlap") ? "--overlap" : "--oom-kill-step=0");
  const Names more = words_of_text(where.srun);
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

RankLauncher launcher_of(const WhereToLaunch& where, LaunchWay way) {
  Names words = words_of_text(where.launcher);
  if (words.empty() && way == LaunchWay::slurm) words = srun_words(where);
  if (words.empty()) words = words_of_text(where.mpiexec);
  if (words.empty()) words = {"mpiexec"};
  if (way == LaunchWay::slurm && !is_srun(words[0])) way = LaunchWay::hosts;  // mpiexec inside a job of Slurm
  if (way != LaunchWay::slurm && is_srun(words[0]))
    fail(ExitCode::usage, "--launcher {}: srun starts ranks only inside an allocation of Slurm, and SLURM_JOB_ID is not set: use mpiexec",
         words[0]);
  return {way, words};
}

}  // namespace

FirstLaunch first_launch(const WhereToLaunch& where) {
  if (where.ranks < 1) fail(ExitCode::usage, "supervise needs the number of ranks: -n 8");
  Names nodes;
  LaunchWay way = LaunchWay::hosts;
  if (where.local) {
    way = LaunchWay::local;
  } else if (!where.hosts.empty()) {
    nodes = without_repeats(expand_hosts(where.hosts));
  } else if (!where.hostfile.empty()) {
    nodes = hosts_of_file(where.hostfile);
  } else if (where.slurm_nodes) {
    way = LaunchWay::slurm;
    nodes = without_repeats(expand_hosts(*where.slurm_nodes));
  } else if (where.pbs_hostfile) {
    nodes = hosts_of_file(*where.pbs_hostfile);
  } else {
    fail(ExitCode::environment,
         "supervise found no allocation: run it inside a job of Slurm (sbatch, salloc) or PBS, name hosts (--hosts a,b,c or --hostfile "
         "FILE), or give --local for all ranks on this machine");
  }
  FirstLaunch first{.launcher = launcher_of(where, way), .places = {.ranks = where.ranks, .per_node = where.ranks}};
  if (way == LaunchWay::local) {
    if (where.spares > 0)
      fail(ExitCode::usage, "--spares {} reserves nodes, but --local uses only this machine: leave --spares out, or name hosts",
           where.spares);
    return first;
  }
  if (nodes.empty()) fail(ExitCode::usage, "no host is named: give --hosts a,b,c or a line a host in --hostfile FILE");
  const int used = static_cast<int>(nodes.size()) - where.spares;
  if (used < 1)
    fail(ExitCode::usage, "--spares {} leaves no node of {}: name at least one node more than spares", where.spares, nodes.size());
  if (where.ranks % used != 0)
    fail(ExitCode::usage, "-n {} does not divide over {} nodes ({} less {} spare): start {} ranks, or another number of spares",
         where.ranks, used, nodes.size(), where.spares, std::max(1, (where.ranks + used / 2) / used) * used);
  first.places.per_node = where.ranks / used;
  first.places.nodes.assign(nodes.begin(), nodes.begin() + used);
  first.places.spares.assign(nodes.begin() + used, nodes.end());
  return first;
}

std::string host_lines(const RankPlaces& places) {
  std::string lines;
  for (int rank = 0; rank < places.ranks && !places.nodes.empty(); ++rank)
    lines += places.nodes[static_cast<std::size_t>(rank / places.per_node)] + "\n";
  return lines;
}

Names launch_words(const RankLauncher& launcher, const RankPlaces& places, const std::string& hosts, const std::string& report,
                   const Names& program) {
  Names words = launcher.words;
  const auto add = [&](const Names& more) { words.insert(words.end(), more.begin(), more.end()); };
  switch (launcher.way) {
    case LaunchWay::slurm:  // the order of ranks stands in the file that SLURM_HOSTFILE names
      add({fmt::format("--nodes={}", places.nodes.size()), fmt::format("--ntasks={}", places.ranks), "--distribution=arbitrary"});
      break;
    case LaunchWay::hosts:
      add({"-n", fmt::format("{}", places.ranks), "--hostfile", hosts, "env", "TESSERA_STATUS_FILE=" + report});
      break;
    case LaunchWay::local:
      add({"-n", fmt::format("{}", places.ranks)});
      break;
  }
  add(program);
  return words;
}

Names probe_words(const RankLauncher& launcher, const std::string& node) {
  if (launcher.way == LaunchWay::slurm) {
    Names words{"srun", "--nodes=1", "--ntasks=1", "--nodelist=" + node};
    // A probe takes no part of the node for itself, and waits for nobody's.
    if (std::find(launcher.words.begin(), launcher.words.end(), "--overlap") != launcher.words.end()) words.emplace_back("--overlap");
    words.insert(words.end(), {"--mpi=none", "true"});
    return words;
  }
  Names words = launcher.words;
  words.insert(words.end(), {"-n", "1", "--host", node, "true"});
  return words;
}

}  // namespace tessera
