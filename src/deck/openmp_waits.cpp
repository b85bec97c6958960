#include "deck/openmp_waits.hpp"

#include <array>
#include <cstring>

namespace tessera {
namespace {

/// 20 to 60 us, by how long a processor's PAUSE takes: a part that follows at once finds its threads awake.
char looks[] = "GOMP_SPINCOUNT=1000";

template <std::size_t n>
bool is_one_of(const char* entry, const std::array<const char*, n>& names) {
  for (const char* name : names)
    if (const std::size_t length = std::strlen(name); std::strncmp(entry, name, length) == 0 && entry[length] == '=') return true;
  return false;
}

}  // namespace

void shorten_openmp_waits(char** environment) noexcept {
  constexpr std::array<const char*, 2> asked = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"};
  constexpr std::array<const char*, 3> of_shells = {"_", "OLDPWD", "SHLVL"};
  char** place = nullptr;
  for (; environment && *environment; ++environment) {
    if (is_one_of(*environment, asked)) return;
    if (!place && is_one_of(*environment, of_shells)) place = environment;
  }
  if (place) *place = looks;
}

void shorten_openmp_waits_at_start(int, char**, char** environment) noexcept { shorten_openmp_waits(environment); }

}  // namespace tessera
