#include "report/links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "report/system_tree.hpp"

namespace tessera {
namespace {

/// Of megabits a second; an adapter that is down, or of a virtual machine, says -1 or nothing.
std::string speed_text(const std::string& megabits) {
  const long speed = std::strtol(megabits.c_str(), nullptr, 10);
  return speed > 0 ? fmt::format("{:g} Gb/s", static_cast<double>(speed) / 1000) : "of unknown speed";
}

}  // namespace

std::vector<Fact> link_facts(const std::string& sys) {
  std::vector<Fact> facts;
  const std::string net = sys + "/class/net/", infiniband = sys + "/class/infiniband/";
  for (const std::string& name : names_in(net))
    if (is_there(net + name + "/device"))  // others are made by software, or cannot be looked at
      facts.push_back(
          {"links", name, fmt::format("{}, {}", speed_text(line_of_file(net + name + "/speed")), line_of_file(net + name + "/operstate"))});
  for (const std::string& name : names_in(infiniband))
    for (const std::string& port : names_in(infiniband + name + "/ports")) {
      const std::string at = infiniband + name + "/ports/" + port, state = line_of_file(at + "/state");
      facts.push_back({"links", fmt::format("{}:{}", name, port),
                       fmt::format("{}, {}", line_of_file(at + "/rate"), state.substr(std::min(state.size(), state.find(' ') + 1)))});
    }
  return facts;
}

}  // namespace tessera
