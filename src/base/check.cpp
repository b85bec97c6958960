#include "base/check.hpp"

#include <fmt/format.h>

namespace tessera {

void throw_error(ExitCode code, fmt::string_view format, fmt::format_args args) { throw Error(code, fmt::vformat(format, args)); }

void fail_require(const char* condition, const char* file, int line, const std::string& message) {
  throw Error(ExitCode::internal, fmt::format("{}:{}: {} does not hold{}{}. This is a defect of Tessera; please report it with the deck.",
                                              file, line, condition, message.empty() ? "" : ": ", message));
}

}  // namespace tessera
