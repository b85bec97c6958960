#include "base/check.hpp"

namespace tessera {

void fail_require(const char* condition, const char* file, int line, const std::string& message) {
  throw Error(ExitCode::internal, fmt::format("{}:{}: {} does not hold{}{}. This is a defect of Tessera; please report it with the deck.",
                                              file, line, condition, message.empty() ? "" : ": ", message));
}

}  // namespace tessera
