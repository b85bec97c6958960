#include "report/nodes/node_facts.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cstdlib>
#include <optional>

#include "base/json.hpp"
#include "base/types.hpp"
#include "report/nvml.hpp"
#include "report/system_tree.hpp"
#include "train/engine/program_identity.hpp"

namespace tessera {
namespace {

using Facts = std::vector<NodeFact>;

void add(Facts& facts, const std::string& thing, const std::string& name, const std::string& value) {
  if (!value.empty()) facts.push_back({thing, name, value});
}
void add_bytes(Facts& facts, const std::string& thing, const std::string& name, double bytes) {
  if (bytes > 0) facts.push_back({thing, name, human_bytes(bytes), bytes});
}

/// "[madvise]" of "always [madvise] never".
std::string chosen_word(const std::string& line) {
  const std::size_t begin = line.find('['), end = line.find(']');
  return begin == line.npos || end == line.npos || end < begin ? "" : line.substr(begin + 1, end - begin - 1);
}

/// One row a fact of the node that is a line of a file, or a part of one.
struct LineOfNode {
  const char *name, *root, *path;
  std::string (*value)(const std::string& path);
};
std::string of_processor(const std::string& path, const char* key) { return field_of_file(path, key); }
const LineOfNode lines_of_node[] = {
    {"kernel", "proc", "sys/kernel/osrelease", line_of_file},
    {"processor", "proc", "cpuinfo", [](const std::string& path) { return of_processor(path, "model name"); }},
    {"microcode", "proc", "cpuinfo", [](const std::string& path) { return of_processor(path, "microcode"); }},
    {"processing units", "sys", "devices/system/cpu/online", line_of_file},
    {"frequency governor", "sys", "devices/system/cpu/cpu0/cpufreq/scaling_governor", line_of_file},
    {"transparent huge pages", "sys", "kernel/mm/transparent_hugepage/enabled",
     [](const std::string& path) { return chosen_word(line_of_file(path)); }},
    {"kernel module of NVIDIA", "proc", "driver/nvidia/version", line_of_file},
};

void add_node(const NodeRoots& roots, Facts& facts) {
  for (const LineOfNode& row : lines_of_node)
    add(facts, "", row.name, row.value((std::string_view(row.root) == "sys" ? roots.sys : roots.proc) + "/" + row.path));
  for (const char* key : {"MemTotal", "SwapTotal"})
    add_bytes(facts, "", key[0] == 'M' ? "memory" : "swap", 1024 * std::atof(field_of_file(roots.proc + "/meminfo", key).c_str()));
  struct statvfs room;
  if (::statvfs(roots.shared_memory.c_str(), &room) == 0)
    add_bytes(facts, "", "shared memory (" + roots.shared_memory + ")",
              static_cast<double>(room.f_blocks) * static_cast<double>(room.f_frsize));
  const std::string pools = roots.sys + "/kernel/mm/hugepages";
  for (const std::string& pool : names_in(pools))
    add(facts, "", "reserved pages of " + pool.substr(pool.find('-') + 1), line_of_file(pools + "/" + pool + "/nr_hugepages"));
  const std::string memories = roots.sys + "/devices/system/node";
  for (const std::string& name : names_in(memories)) {
    if (!name.starts_with("node") || name.find_first_not_of("0123456789", 4) != name.npos) continue;
    const std::string thing = "NUMA memory " + name.substr(4), at = memories + "/" + name;
    add_bytes(facts, thing, "size", 1024 * std::atof(word_after(at + "/meminfo", "MemTotal:").c_str()));
    add(facts, thing, "near units", line_of_file(at + "/cpulist"));
  }
}

/// "16.0 GT/s PCIe x8 of 32.0 GT/s PCIe x16": a slot, a cable or a riser that is worn shows here.
std::string bus_link(const std::string& device) {
  const auto of = [&](const char* which) {
    const std::string speed = line_of_file(device + "/" + which + "_link_speed"),
                      width = line_of_file(device + "/" + which + "_link_width");
    return speed.empty() || width.empty() ? "" : fmt::format("{} x{}", speed, width);
  };
  const std::string now = of("current"), most = of("max");
  return now.empty() || now == most ? now : now + " of " + most;
}

/// Of megabits a second; an adapter that is down, or of a virtual machine, says -1 or nothing.
std::string gigabits(const std::string& megabits) {
  const long speed = std::strtol(megabits.c_str(), nullptr, 10);
  return speed > 0 ? fmt::format("{:g} Gb/s", static_cast<double>(speed) / 1000) : "";
}

void add_links(const NodeRoots& roots, Facts& facts) {
  const std::string net = roots.sys + "/class/net", infiniband = roots.sys + "/class/infiniband";
  for (const std::string& name : names_in(net)) {
    const std::string at = net + "/" + name;
    if (!is_there(at + "/device")) continue;  // made by software
    add(facts, name, "state", line_of_file(at + "/operstate"));
    add(facts, name, "speed", gigabits(line_of_file(at + "/speed")));
    add(facts, name, "MTU", line_of_file(at + "/mtu"));
    add(facts, name, "driver", name_behind(at + "/device/driver"));
    add(facts, name, "driver's version", line_of_file(at + "/device/driver/module/version"));
    add(facts, name, "PCIe link", bus_link(at + "/device"));
  }
  for (const std::string& name : names_in(infiniband)) {
    const std::string at = infiniband + "/" + name;
    add(facts, name, "type", line_of_file(at + "/hca_type"));
    add(facts, name, "firmware", line_of_file(at + "/fw_ver"));
    add(facts, name, "PCIe link", bus_link(at + "/device"));
    for (const std::string& port : names_in(at + "/ports")) {
      const std::string of_port = at + "/ports/" + port, state = line_of_file(of_port + "/state");
      add(facts, name + ":" + port, "state", state.substr(std::min(state.size(), state.find(' ') + 1)));
      std::string speed = line_of_file(of_port + "/rate");
      if (const std::size_t unit = speed.find("Gb/sec"); unit != speed.npos) speed.replace(unit, 6, "Gb/s");
      add(facts, name + ":" + port, "speed", speed);
      add(facts, name + ":" + port, "kind", line_of_file(of_port + "/link_layer"));
    }
  }
}

void add_disks(const NodeRoots& roots, Facts& facts) {
  const std::string disks = roots.sys + "/class/nvme";
  for (const std::string& name : names_in(disks)) {
    const std::string at = disks + "/" + name;
    add(facts, name, "model", line_of_file(at + "/model"));
    add(facts, name, "firmware", line_of_file(at + "/firmware_rev"));
    add(facts, name, "state", line_of_file(at + "/state"));
    add(facts, name, "PCIe link", bus_link(at + "/device"));
  }
}

struct LimitRow {
  const char* name;
  __rlimit_resource resource;
  bool bytes;
};
const LimitRow limit_rows[] = {{"limit of open files", RLIMIT_NOFILE, false},  {"limit of locked memory", RLIMIT_MEMLOCK, true},
                               {"limit of processes", RLIMIT_NPROC, false},    {"limit of address space", RLIMIT_AS, true},
                               {"limit of a file's size", RLIMIT_FSIZE, true}, {"limit of a stack", RLIMIT_STACK, true}};

}  // namespace

std::vector<NodeFact> system_facts(const NodeRoots& roots) {
  Facts facts;
  add_node(roots, facts);
  add_links(roots, facts);
  add_disks(roots, facts);
  return facts;
}

std::vector<NodeFact> process_facts() {
  Facts facts;
  for (const IdentityField& field : program_identity()) add(facts, "program", field.name, field.value);
  for (const LimitRow& row : limit_rows) {
    rlimit limit{};
    const bool none = getrlimit(row.resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY;
    add(facts, "", row.name,
        none        ? "none"
        : row.bytes ? human_bytes(static_cast<double>(limit.rlim_cur))
                    : fmt::format("{}", limit.rlim_cur));
  }
  const DriverView seen = view_of_driver();
  add(facts, "", "GPU driver", seen.driver);
  if (!seen.driver.empty()) add(facts, "", "GPUs", fmt::format("{}", seen.gpus.size()));
  for (std::size_t gpu = 0; gpu < seen.gpus.size(); ++gpu) {
    const std::string thing = fmt::format("GPU {}", gpu);
    add(facts, thing, "model", seen.gpus[gpu]);
    // Of its width alone: an idle GPU slows its link down.
    if (gpu < seen.health.size() && seen.health[gpu].link_width > 0)
      add(facts, thing, "PCIe link", fmt::format("x{} of x{}", seen.health[gpu].link_width, seen.health[gpu].most_link_width));
  }
  return facts;
}

std::string pack(const NodeAround& node) {
  Json out = {{"name", node.name}, {"facts", Json::array()}};
  for (const NodeFact& f : node.facts) out["facts"].push_back({f.thing, f.name, f.value, f.amount});
  return out.dump(-1, BadText::replace);
}

NodeAround unpack_node(const std::string& text) {
  const Json in = Json::parse(text);
  NodeAround node{in["name"], {}};
  for (const Json& f : in["facts"]) node.facts.push_back({f[0], f[1], f[2], f[3]});
  return node;
}

}  // namespace tessera
