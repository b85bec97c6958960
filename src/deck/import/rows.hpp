// How rows of the table of DeepSpeed's keys are written.
#pragma once
#include "deck/import/deepspeed_keys.hpp"

namespace tessera::rows {

using enum DeepSpeedType;

inline DeepSpeedKey mapped(std::string_view name, DeepSpeedType type, std::string_view ours, std::string_view says = "") {
  return {.name = name, .type = type, .outcome = DeepSpeedOutcome::mapped, .ours = ours, .says = says};
}
inline DeepSpeedKey unneeded(std::string_view name, DeepSpeedType type, std::string_view says) {
  return {.name = name, .type = type, .outcome = DeepSpeedOutcome::unneeded, .says = says};
}
/// `off`: the value that changes nothing; of a section the name of its switch, "enabled".
inline DeepSpeedKey refused(std::string_view name, DeepSpeedType type, std::string_view off, std::string_view says) {
  return {.name = name, .type = type, .outcome = DeepSpeedOutcome::refused, .says = says, .off = off};
}
inline DeepSpeedKey part(std::string_view name, DeepSpeedType type = any) { return {.name = name, .type = type}; }

/// "auto" means `value`, as `filled_by` would fill it in.
inline DeepSpeedKey with_auto(DeepSpeedKey key, std::string_view value, std::string_view filled_by) {
  key.automatic = value, key.filled_by = filled_by;
  return key;
}
inline DeepSpeedKey with_words(DeepSpeedKey key, std::vector<std::pair<std::string_view, std::string_view>> words) {
  key.words = std::move(words);
  return key;
}
inline DeepSpeedKey together(DeepSpeedKey key) {
  key.together = true;
  return key;
}
inline DeepSpeedKey open(DeepSpeedKey key) {
  key.open = true;
  return key;
}
/// The key of ours that, given on the command line, takes the place of a refused one.
inline DeepSpeedKey unless_given(std::string_view ours, DeepSpeedKey key) {
  key.ours = ours;
  return key;
}

}  // namespace tessera::rows
