// The first few of many names, for a message.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace tessera {

/// "a, b, c and 12 more"
std::string some_of(const std::vector<std::string>& names, std::size_t most = 5);

}  // namespace tessera
