#include "deck/schema/phases.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "deck/schema/table_rows.hpp"

namespace tessera {
namespace {

constexpr std::int64_t largest = 1'000'000'000'000;  // steps of a run

/// What is wrong with a table, after its number: `has globl, which ...`.
std::string read_phase(const toml::table& table, RampPhase& phase) {
  for (const auto& [name, node] : table) {
    std::int64_t* field = name.str() == "until_step"        ? &phase.until_step
                          : name.str() == "global"          ? &phase.global
                          : name.str() == "sequence_length" ? &phase.sequence_length
                                                            : nullptr;
    if (!field)
      return fmt::format("has {}, which is not one of until_step, global and sequence_length", shortened(std::string(name.str())));
    const auto* number = node.as_integer();
    if (!number || number->get() < 1 || number->get() > largest) return fmt::format("has a {} that is not an integer from 1", name.str());
    *field = number->get();
  }
  if (phase.until_step == 0) return "has no until_step, the number of steps done when it ends";
  if (phase.global == 0 && phase.sequence_length == 0) return "has neither global nor sequence_length; give one";
  return "";
}

}  // namespace

Literal read_phases(const toml::array& tables) { return read_rows(tables, "phase", read_phase); }

std::string phases_text(const std::vector<RampPhase>& phases) {
  std::vector<std::string> tables;
  for (const RampPhase& phase : phases) {
    std::string text = fmt::format("until_step = {}", phase.until_step);
    if (phase.global > 0) text += fmt::format(", global = {}", phase.global);
    if (phase.sequence_length > 0) text += fmt::format(", sequence_length = {}", phase.sequence_length);
    tables.push_back("{ " + text + " }");
  }
  return fmt::format("[{}]", fmt::join(tables, ", "));
}

}  // namespace tessera
