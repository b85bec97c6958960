// Preloaded into the program: gethostname throws what THROW says, from where nobody catches it. Libraries ask for the name before main
// begins; their calls are left alone, and known by the handler of std::terminate, which is still the library's then.
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>

namespace {
const std::terminate_handler at_load = std::get_terminate();
}

extern "C" int gethostname(char* name, std::size_t size) {
  if (!at_load || std::get_terminate() == at_load) {
    std::strncpy(name, "localhost", size);
    return 0;
  }
  const char* what = std::getenv("THROW");
  if (what && std::strcmp(what, "number") == 0) throw 7;
  throw std::runtime_error("thrown by a test");
}
