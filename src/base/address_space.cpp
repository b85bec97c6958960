#include "base/address_space.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <optional>

#include "base/check.hpp"
#include "base/types.hpp"

namespace tessera {
namespace {

struct AddressSpace {
  std::int64_t limit = 0, taken = 0;
};

/// Nothing where there is no limit, or the system does not say what is taken.
std::optional<AddressSpace> limited_space() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  std::int64_t pages = 0;
  if (!(std::ifstream("/proc/self/statm") >> pages)) return std::nullopt;
  return AddressSpace{static_cast<std::int64_t>(limit.rlim_cur), pages * sysconf(_SC_PAGESIZE)};
}

std::string human(std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

}  // namespace

std::string address_space_text() {
  const std::optional<AddressSpace> space = limited_space();
  if (!space) return "";
  return fmt::format(
      " RLIMIT_AS (ulimit -v) leaves this process {} of addresses, and {} of them are taken: raise that limit, or set ulimit -v unlimited.",
      human(space->limit), human(space->taken));
}

void require_address_space(std::int64_t bytes, const char* what) {
  const std::optional<AddressSpace> space = limited_space();
  if (space && space->limit - space->taken < bytes)
    fail(ExitCode::memory, "{} takes some {} of addresses.{}", what, human(bytes), address_space_text());
}

}  // namespace tessera
