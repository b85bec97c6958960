// The one error family. Every failure is an Error with an exit code and a message that names the thing and what to do next.
#pragma once
#include <fmt/core.h>

#include <string>

#include "base/error.hpp"

namespace tessera {

[[noreturn]] void throw_error(ExitCode code, fmt::string_view format, fmt::format_args args);

/// Throws Error(code) with a formatted message. The message says what is wrong, where, and what to do next.
template <class... Args>
[[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw_error(code, format, fmt::make_format_args(args...));
}

[[noreturn]] void fail_require(const char* condition, const char* file, int line, const std::string& message);

}  // namespace tessera

/// An invariant of our own code: prints condition, file and line. Not for user input (use fail).
#define TESSERA_REQUIRE(condition, ...)                                                                       \
  do {                                                                                                        \
    if (!(condition)) ::tessera::fail_require(#condition, __FILE__, __LINE__, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
