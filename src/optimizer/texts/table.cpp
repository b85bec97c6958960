#include "optimizer/texts/table.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace tessera {

// A row an optimizer, which its file defines.
#define TESSERA_OPTIMIZERS(row) \
  row(adamw) row(adam) row(lion) row(sgd) row(lamb) row(adafactor) row(adafactor_vector) row(muon) row(adam8bit) row(onebit_adam)

#define TESSERA_DECLARE(name) Optimizer name();
TESSERA_OPTIMIZERS(TESSERA_DECLARE)
#undef TESSERA_DECLARE

const std::vector<Optimizer>& optimizers() {
#define TESSERA_ROW(name) name(),
  static const std::vector<Optimizer> rows = {TESSERA_OPTIMIZERS(TESSERA_ROW)};
#undef TESSERA_ROW
  return rows;
}

std::vector<std::pair<std::string_view, std::string_view>> refused_optimizers() {
  return {{"zero_one_adam", "0/1 Adam is not in this version; set \"onebit_adam\""}};
}

const Optimizer& optimizer_named(std::string_view name) {
  const auto found = std::ranges::find(optimizers(), name, &Optimizer::name);
  if (found == optimizers().end()) fail(ExitCode::internal, "no optimizer is called {}", name);
  return *found;
}

const Optimizer* optimizer_of_deepspeed(std::string_view name) {
  const auto found = std::ranges::find_if(
      optimizers(), [&](const Optimizer& row) { return std::ranges::find(row.deepspeed, name) != row.deepspeed.end(); });
  return found == optimizers().end() ? nullptr : &*found;
}

std::vector<std::string_view> optimizer_names() {
  std::vector<std::string_view> names;
  for (const Optimizer& row : optimizers())
    if (!row.hidden) names.push_back(row.name);
  return names;
}

}  // namespace tessera
