#include "optimizer/state.hpp"

#include "optimizer/texts/table.hpp"

namespace tessera {

UpdateRecord update_of(const OptimizerKeys& keys) {
  UpdateText text({.momentum = keys.momentum > 0, .nesterov = keys.nesterov});
  optimizer_named(keys.type).text(text);
  return text.record();
}

std::vector<std::string_view> state_groups(const OptimizerKeys& keys) {
  std::vector<std::string_view> groups = {master_group};
  for (const StateRow& row : update_of(keys).state) groups.push_back(row.group);
  return groups;
}

std::int64_t state_bytes(const OptimizerKeys& keys) {
  std::int64_t bytes = 0;
  for (const StateRow& row : update_of(keys).state) bytes += row.bytes(1);
  return bytes;
}

}  // namespace tessera
