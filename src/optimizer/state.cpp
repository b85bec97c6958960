#include "optimizer/state.hpp"

#include <array>

#include "base/check.hpp"

namespace tessera {

std::span<const std::string_view> state_groups(OptimizerType optimizer) {
  static constexpr std::array<std::string_view, 3> adamw = {master_group, "adam_m", "adam_v"};
  switch (optimizer) {
    case OptimizerType::adamw:
      return adamw;
  }
  fail(ExitCode::internal, "optimizer {} has no groups of state", static_cast<int>(optimizer));
}

}  // namespace tessera
