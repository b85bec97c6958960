#include "report/surroundings.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include "base/backend.hpp"
#include "base/json.hpp"

#include "base/control_groups.hpp"
#include "base/types.hpp"
#include "base/version.hpp"
#include "deck/environment.hpp"
#include "io/nvme/memlock.hpp"
#include "io/nvme/preflight.hpp"
#include "memory/arena.hpp"
#include "report/links.hpp"
#include "report/nvml.hpp"
#include "topology/devices/gpu_environment.hpp"
#include "topology/devices/numa.hpp"
#include "topology/world.hpp"
#include "train/engine/device.hpp"
#include "train/engine/program_identity.hpp"
#ifdef TESSERA_CUDA
#include "kernels/cuda/devices.hpp"
#endif

namespace tessera {
namespace {

std::string human(std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

/// The first line of a file, empty where there is none.
std::string file_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

int allowed_units() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

std::string resource_limit(__rlimit_resource resource, bool bytes) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "no limit";
  return bytes ? human(static_cast<std::int64_t>(limit.rlim_cur)) : fmt::format("{}", limit.rlim_cur);
}

void add_node(Surroundings& s) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const NodeMemory memory = node_memory();
  const GroupLimits group = group_limits();
  const double granted = group.fewest_cores();
  const int units = allowed_units();
  s.facts.push_back({"node", "host", host});
  s.facts.push_back({"node", "processor", processor_name()});
  s.facts.push_back({"node", "processing units", fmt::format("{} of {}", units, sysconf(_SC_NPROCESSORS_ONLN))});
  for (const NumaNode& n : numa_nodes())
    s.facts.push_back({"node", fmt::format("memory {}", n.number),
                       fmt::format("{} near units {}", n.bytes > 0 ? human(n.bytes) : "unknown size", n.units)});
  s.facts.push_back({"node", "memory", human(static_cast<std::int64_t>(memory.total))});
  s.facts.push_back({"node", "free memory", human(static_cast<std::int64_t>(memory.available)), true});
  const std::string huge = file_line("/sys/kernel/mm/transparent_hugepage/enabled");
  s.facts.push_back({"node", "huge pages", huge.empty() ? "not known" : huge});
  if (huge.find("[never]") != huge.npos)
    s.lacking.push_back({"kernels on the host at full speed", "transparent huge pages are never granted",
                         "ask an administrator for transparent_hugepage = madvise"});
  s.facts.push_back({"limits", "cores of the control group", granted > 0 ? fmt::format("{:g}", granted) : "no limit"});
  if (granted > 0 && granted < units - 0.5)
    s.lacking.push_back({"threads as many as cores", fmt::format("{} processing units are seen and {:g} may be used", units, granted),
                         "runs take as many threads as the control groups grant; ask the scheduler for more"});
  s.facts.push_back(
      {"limits", "memory of the control group",
       group.memory ? fmt::format("{}, of {}", human(static_cast<std::int64_t>(*group.memory)), group.memory_group) : "no limit"});
  s.facts.push_back({"limits", "processes of the control group", group.processes ? fmt::format("{}", *group.processes) : "no limit"});
  s.facts.push_back({"limits", "locked memory", io::memlock_text()});
  s.facts.push_back({"limits", "open files", resource_limit(RLIMIT_NOFILE, false)});
  s.facts.push_back({"limits", "size of a file", resource_limit(RLIMIT_FSIZE, true)});
  s.facts.push_back({"limits", "address space", resource_limit(RLIMIT_AS, true)});
}

void add_program(Surroundings& s) {
  for (const IdentityField& field : program_identity()) s.facts.push_back({"program", field.name, field.value});
  if (std::string_view(host_architecture()).find("AVX512_BF16") == std::string_view::npos)
    s.lacking.push_back({"bf16 on the host at twice the rate of fp32", fmt::format("the program was compiled for {}", host_architecture()),
                         "on a processor with AVX512_BF16 build with -DTESSERA_HOST_ARCH=native"});
}

void add_devices(Surroundings& s) {
  const DriverView seen = view_of_driver();
  if (!seen.driver.empty()) s.facts.push_back({"devices", "GPU driver", seen.driver});
  if (const auto visible = environment("CUDA_VISIBLE_DEVICES")) s.facts.push_back({"devices", "CUDA_VISIBLE_DEVICES", *visible});
#ifdef TESSERA_CUDA
  for (const std::string& line : describe_gpu_environment())
    s.facts.push_back({"devices", line.substr(0, line.find('=')), line.substr(line.find('=') + 1)});
  const int count = cuda::device_count();
  for (int d = 0; d < count; ++d) {
    const cuda::DeviceName name = cuda::device_name(d);
    s.facts.push_back({"devices", fmt::format("GPU {}", d), fmt::format("{}, {}", name.bus, name.uuid)});
  }
  if (count == 0) {
    s.facts.push_back({"devices", "GPUs", "none"});
    s.lacking.push_back({"run.device = \"cuda\"", cuda::why_no_device(), "use a machine with a GPU and its driver"});
  }
#else
  for (std::size_t d = 0; d < seen.gpus.size(); ++d) s.facts.push_back({"devices", fmt::format("GPU {}", d), seen.gpus[d]});
  if (seen.gpus.empty()) s.facts.push_back({"devices", "GPUs", "none: " + seen.why});
  s.lacking.push_back({"run.device = \"cuda\"",
                       seen.gpus.empty() ? "this build has no kernels for GPUs"
                                         : fmt::format("this node has {} GPU{}, but this build has no kernels for them", seen.gpus.size(),
                                                       seen.gpus.size() == 1 ? "" : "s"),
                       "build with the cuda preset (plans for GPUs need none)"});
#endif
}

void add_disks(Surroundings& s, const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    const std::string feature = fmt::format("spilling to {}", folder);
    const io::SpillPreflight found = io::preflight_spill({.folders = {folder}, .purpose = "tessera report", .memory = {}}, 0);
    const io::SpillFolder& f = found.folders.front();
    s.facts.push_back(
        {"disks", folder, f.usable ? fmt::format("{}, {} free, {}", f.file_system, human(f.free_bytes), found.how) : "not usable", true});
    for (const std::string& problem : found.problems) s.lacking.push_back({feature, problem, ""});
    for (const std::string& note : found.notes) s.lacking.push_back({feature + " at its best", note, ""});
  }
}

}  // namespace

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "a processor without a name";
}

Surroundings look_around(const std::vector<std::string>& folders) {
  Surroundings s;
  add_program(s);
  add_node(s);
  add_devices(s);
  const std::vector<Fact> links = link_facts("/sys");
  s.facts.insert(s.facts.end(), links.begin(), links.end());
  add_disks(s, folders);
  return s;
}

std::string print_surroundings(const Surroundings& around) {
  std::string text, room;
  for (const Fact& f : around.facts) {
    if (f.room != room) text += fmt::format("{}\n", room = f.room);
    text += fmt::format("  {:28} {}\n", f.name, f.value);
  }
  text += around.lacking.empty() ? "nothing is missing\n" : "lacks\n";
  for (const Lack& l : around.lacking) text += fmt::format("  {}: {}{}\n", l.feature, l.why, l.remedy.empty() ? "" : "; " + l.remedy);
  return text;
}

std::string surroundings_json(const Surroundings& around) {
  Json out;
  for (const Fact& f : around.facts) out[f.room][f.name] = f.value;
  out["lacking"] = Json::array();
  for (const Lack& l : around.lacking) out["lacking"].push_back({{"feature", l.feature}, {"why", l.why}, {"remedy", l.remedy}});
  return out.dump(2);
}

}  // namespace tessera
