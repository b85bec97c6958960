// How rows of the tables of other programs' keys are written.
#pragma once
#include "deck/import/foreign_keys.hpp"

namespace tessera::rows {

using enum ForeignType;

inline ForeignKey mapped(std::string_view name, ForeignType type, std::string_view ours, std::string_view says = "") {
  return {.name = name, .type = type, .outcome = ForeignOutcome::mapped, .ours = ours, .says = says};
}
inline ForeignKey unneeded(std::string_view name, ForeignType type, std::string_view says) {
  return {.name = name, .type = type, .outcome = ForeignOutcome::unneeded, .says = says};
}
/// `off`: the value that changes nothing; of a section the name of its switch, "enabled".
inline ForeignKey refused(std::string_view name, ForeignType type, std::string_view off, std::string_view says) {
  return {.name = name, .type = type, .outcome = ForeignOutcome::refused, .says = says, .off = off};
}
inline ForeignKey part(std::string_view name, ForeignType type = any) { return {.name = name, .type = type}; }

/// "auto" means `value`, as `filled_by` would fill it in.
inline ForeignKey with_auto(ForeignKey key, std::string_view value, std::string_view filled_by) {
  key.automatic = value, key.filled_by = filled_by;
  return key;
}
inline ForeignKey with_words(ForeignKey key, std::vector<std::pair<std::string_view, std::string_view>> words) {
  key.words = std::move(words);
  return key;
}
inline ForeignKey together(ForeignKey key) {
  key.together = true;
  return key;
}
/// The other program refuses the key itself since this version.
inline ForeignKey gone_since(std::string_view version, ForeignKey key) {
  key.gone = version;
  return key;
}
inline ForeignKey open(ForeignKey key) {
  key.open = true;
  return key;
}
/// The key of ours that, given on the command line, takes the place of a refused one.
inline ForeignKey unless_given(std::string_view ours, ForeignKey key) {
  key.ours = ours;
  return key;
}

}  // namespace tessera::rows
