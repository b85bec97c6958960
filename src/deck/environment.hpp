// The process environment. The only place that reads it: everything else a run is told stands in the deck.
#pragma once
#include <cstdlib>
#include <optional>
#include <string>

namespace tessera {

/// Value of an environment variable, nothing when it is not set.
inline std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

/// Sets a variable that a library reads at its start, unless the user has set it. Call before other threads exist.
inline void default_environment(const char* name, const char* value) { setenv(name, value, 0); }

/// Takes a variable out again.
inline void clear_environment(const char* name) { unsetenv(name); }

/// Value of an environment variable as a whole number; 0 when it is not set or is none.
inline int environment_number(const char* name) { return std::atoi(environment(name).value_or("").c_str()); }

}  // namespace tessera
