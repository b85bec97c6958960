#include "model/table/frozen.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "base/check.hpp"
#include "base/glob.hpp"
#include "deck/schema/hints.hpp"

namespace tessera {
namespace {

void freeze(std::vector<Parameter>& table, const std::string& pattern) {
  bool any = false;
  for (Parameter& p : table) {
    if (!matches_glob(pattern, p.name)) continue;
    if (!p.trained)
      fail(ExitCode::usage,
           "model.freeze: \"{}\" matches {}, which has no gradient: the loads of experts move it. Use patterns that leave it out.", pattern,
           p.name);
    if (p.whole)
      fail(ExitCode::usage, "model.freeze: \"{}\" matches {}, which lora.modules_to_save trains. Leave one of the two out.", pattern,
           p.name);
    any = p.frozen = true;
  }
  if (!any)
    fail(ExitCode::usage, "model.freeze: no tensor of this model matches \"{}\"; the nearest names are {}", pattern,
         fmt::join(nearest_names(table, pattern), ", "));
}

}  // namespace

std::vector<std::string> nearest_names(const std::vector<Parameter>& table, std::string_view pattern) {
  std::vector<std::pair<int, std::string>> names;
  for (const Parameter& p : table) names.emplace_back(edit_distance(pattern, p.name), p.name);
  const auto most = names.begin() + std::min<std::ptrdiff_t>(3, std::ssize(names));
  std::partial_sort(names.begin(), most, names.end());
  std::vector<std::string> nearest;
  for (auto name = names.begin(); name != most; ++name) nearest.push_back(name->second);
  return nearest;
}

void require_joined_alike(const std::vector<Parameter>& table, std::string_view key) {
  for (std::size_t i = 1; i < table.size(); ++i)
    if (table[i].joined && table[i].frozen != table[i - 1].frozen)
      fail(ExitCode::usage, "{}: one product reads {} and {}, but only {} is frozen. Name both or neither.", key, table[i - 1].name,
           table[i].name, table[i].frozen ? table[i].name : table[i - 1].name);
}

void freeze(std::vector<Parameter>& table, std::span<const std::string> patterns) {
  if (patterns.empty()) return;
  for (const std::string& pattern : patterns) freeze(table, pattern);
  require_joined_alike(table, "model.freeze");
  if (std::ranges::none_of(table, [](const Parameter& p) { return p.trained && !p.frozen; }))
    fail(ExitCode::usage, "model.freeze leaves no tensor to train. Leave a pattern out.");
}

std::string describe_frozen(const std::vector<Parameter>& table) {
  std::vector<Parameter> frozen;
  std::ranges::copy_if(table, std::back_inserter(frozen), &Parameter::frozen);
  if (frozen.empty()) return "";
  const auto count = [](const std::vector<Parameter>& of) { return human_count(static_cast<double>(parameter_count(of))); };
  return fmt::format("{} of {} tensors, {} of {} parameters", frozen.size(), table.size(), count(frozen), count(table));
}

}  // namespace tessera
