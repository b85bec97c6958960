#include "optimizer/groups.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/glob.hpp"
#include "deck/schema/update_keys.hpp"
#include "model/table/frozen.hpp"

namespace tessera {
namespace {

bool is_updated(const Parameter& p) { return p.trained && !p.frozen; }

bool describes(const std::string& pattern, const Parameter& p) {
  return pattern == "all-linear" ? is_hidden_matrix(p) : matches_glob(pattern, p.name);
}

}  // namespace

bool is_hidden_matrix(const Parameter& p) { return p.shape.dims.size() == 2 && p.layer >= 0; }

const OptimizerGroup* group_of(const OptimizerKeys& keys, const Parameter& tensor) {
  const auto found = std::ranges::find_if(keys.groups, [&](const OptimizerGroup& group) {
    return std::ranges::any_of(group.tensors, [&](const std::string& pattern) { return describes(pattern, tensor); });
  });
  return found == keys.groups.end() ? nullptr : &*found;
}

UpdateRates rates_of(const OptimizerKeys& keys, const Parameter& p) {
  UpdateRates rates{.weight_decay = p.decay ? static_cast<float>(keys.weight_decay) : 0.0f};
  const OptimizerGroup* group = group_of(keys, p);
  if (group && group->learning_rate) rates.learning_rate_scale = static_cast<float>(*group->learning_rate / keys.learning_rate);
  if (group && group->weight_decay) rates.weight_decay = static_cast<float>(*group->weight_decay);
  return rates;
}

void require_groups(const OptimizerKeys& keys, const std::vector<Parameter>& table) {
  std::vector<Parameter> updated;
  std::ranges::copy_if(table, std::back_inserter(updated), is_updated);
  for (const OptimizerGroup& group : keys.groups)
    for (const std::string& pattern : group.tensors)
      if (std::ranges::none_of(updated, [&](const Parameter& p) { return describes(pattern, p); }))
        fail(ExitCode::usage, "optimizer.groups: \"{}\" matches no trained tensor; the nearest names are {}", pattern,
             fmt::join(nearest_names(updated, pattern), ", "));
}

std::vector<std::string> describe_groups(const OptimizerKeys& keys, const std::vector<Parameter>& table) {
  std::vector<std::string> lines;
  for (const OptimizerGroup& group : keys.groups) {
    std::vector<std::string> says;
    if (group.update) says.push_back(group.update->type);
    for (const auto& [key, value] : given_keys(group)) says.push_back(fmt::format("{} {}", key, value));
    if (group.learning_rate) says.push_back(fmt::format("learning rate {}", *group.learning_rate));
    if (group.weight_decay) says.push_back(fmt::format("weight decay {}", *group.weight_decay));
    std::int64_t tensors = 0, parameters = 0;
    for (const Parameter& p : table)
      if (is_updated(p) && group_of(keys, p) == &group) ++tensors, parameters += p.shape.elements();
    lines.push_back(fmt::format("{}: {}; {} tensors, {} parameters", fmt::join(group.tensors, ", "), fmt::join(says, ", "), tensors,
                                human_count(static_cast<double>(parameters))));
  }
  return lines;
}

}  // namespace tessera
