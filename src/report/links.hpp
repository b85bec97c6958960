// The adapters by which a node reaches others.
#pragma once
#include <string>
#include <vector>

#include "report/surroundings.hpp"

namespace tessera {

/// Of all physical network interfaces and ports of InfiniBand adapters that the system lists below `sys` ("/sys"): speed and state.
std::vector<Fact> link_facts(const std::string& sys);

}  // namespace tessera
