// Commands that work in one process.
#pragma once
#include <string_view>

namespace tessera {

/// Error(usage) if a launcher has started several processes: each would do the whole work, and write the same files. `command`: its name.
void require_one_process(std::string_view command);

}  // namespace tessera
