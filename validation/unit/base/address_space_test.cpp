// Limits of addresses, and what exceptions mean for a user.
#include "base/address_space.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <new>
#include <system_error>

#include "base/current_error.hpp"

namespace tessera::address_space_test {
namespace {

constexpr std::int64_t mib = 1 << 20;

/// Leaves this process so many addresses beside those that are taken.
void leave(std::int64_t bytes) {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto limit = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + bytes);
  const rlimit space{limit, limit};
  if (setrlimit(RLIMIT_AS, &space) != 0) _exit(3);
}

TEST(AddressSpace, TooFewAddressesAreNamedBeforeALibraryMeetsTheirEnd) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer takes all addresses";
#endif
  EXPECT_EQ(address_space_text(), "") << "there is no limit here";
  EXPECT_NO_THROW(require_address_space(std::int64_t{1} << 40, "it"));
  EXPECT_EXIT(
      {
        leave(64 * mib);
        require_address_space(mib, "it");
        try {
          require_address_space(128 * mib, "MPI");
        } catch (const Error& error) {
          std::fputs(error.what(), stderr);
          _exit(static_cast<int>(error.code));
        }
        _exit(0);
      },
      testing::ExitedWithCode(5),
      "MPI takes some 128.00 MiB of addresses. RLIMIT_AS .ulimit -v. leaves this process .* are taken: .*ulimit -v unlimited");
}

TEST(CurrentError, IsWhatTheExceptionMeans) {
  struct Case {
    std::function<void()> thrower;
    ExitCode code;
    const char* says;
  };
  const Case cases[] = {
      {[] { throw Error(ExitCode::data, "as it is"); }, ExitCode::data, "as it is"},
      {[] { throw std::bad_alloc(); }, ExitCode::memory, "the system gives no more memory"},
      {[] { throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)); }, ExitCode::memory, "ulimit -u"},
      {[] { throw std::system_error(std::make_error_code(std::errc::io_error)); }, ExitCode::internal, "please report it"},
      {[] { throw std::runtime_error("odd"); }, ExitCode::internal, "odd. This is a defect of Tessera"}};
  for (const Case& c : cases) try {
      c.thrower();
    } catch (const std::exception&) {
      const Error error = current_error();
      EXPECT_EQ(error.code, c.code) << error.what();
      EXPECT_NE(std::string(error.what()).find(c.says), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace tessera::address_space_test
