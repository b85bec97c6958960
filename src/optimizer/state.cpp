#include "optimizer/state.hpp"

#include <array>

#include "base/check.hpp"

namespace tessera {

std::span<const std::string_view> state_groups(std::string_view optimizer) {
  static constexpr std::array<std::string_view, 3> adamw = {master_group, "adam_m", "adam_v"};
  if (optimizer == "adamw") return adamw;
  fail(ExitCode::internal, "optimizer {} has no row in state_groups", optimizer);
}

}  // namespace tessera
