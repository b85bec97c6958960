#include "report/links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

std::string line_of(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

/// Of megabits a second; an adapter that is down, or of a virtual machine, says -1 or nothing.
std::string speed_text(const std::string& megabits) {
  const long speed = std::strtol(megabits.c_str(), nullptr, 10);
  return speed > 0 ? fmt::format("{:g} Gb/s", static_cast<double>(speed) / 1000) : "of a speed that the system does not say";
}

}  // namespace

std::vector<Fact> link_facts(const std::string& sys) {
  std::vector<Fact> facts;
  const fs::path net = fs::path(sys) / "class/net", infiniband = fs::path(sys) / "class/infiniband";
  for (const std::string& name : names_in(net))
    if (std::error_code ignored; fs::exists(net / name / "device", ignored))  // others are made by software, or cannot be looked at
      facts.push_back({"links", name, fmt::format("{}, {}", speed_text(line_of(net / name / "speed")), line_of(net / name / "operstate"))});
  for (const std::string& name : names_in(infiniband))
    for (const std::string& port : names_in(infiniband / name / "ports")) {
      const fs::path at = infiniband / name / "ports" / port;
      const std::string state = line_of(at / "state");
      facts.push_back({"links", fmt::format("{}:{}", name, port),
                       fmt::format("{}, {}", line_of(at / "rate"), state.substr(std::min(state.size(), state.find(' ') + 1)))});
    }
  return facts;
}

}  // namespace tessera
