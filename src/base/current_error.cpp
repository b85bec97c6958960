#include "base/current_error.hpp"

#include <new>
#include <system_error>

#include "base/address_space.hpp"

namespace tessera {
namespace {

Error defect(const char* what) {
  return Error(ExitCode::internal, fmt::format("{}. This is a defect of Tessera; please report it with the command line.", what));
}

}  // namespace

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ExitCode::memory, fmt::format("the system gives no more memory: the machine's is used up, or this process's limit is "
                                               "reached (ulimit -v, the job's request). Ask for less, or for more memory.{}",
                                               address_space_text()));
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) return defect(error.what());
    return Error(ExitCode::memory, fmt::format("the system starts no more threads for this process ({}): raise its limits of memory and of "
                                               "processes (ulimit -v, ulimit -u, the job's request), or use fewer threads (run.threads).{}",
                                               error.what(), address_space_text()));
  } catch (const std::exception& error) {
    return defect(error.what());
  } catch (...) {
    return defect("an exception that is not a std::exception");
  }
}

}  // namespace tessera
