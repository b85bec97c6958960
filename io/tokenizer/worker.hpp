// The text of worker.py, which a build carries, so that a program that was moved or installed needs no file beside it; and its language.
#pragma once
#include <string>
#include <string_view>

namespace tessera::io {

class Child;

extern const char* const worker_text;

/// The answer to a request of an operation, four letters. What the worker says of a fault is thrown as an Error.
std::string ask_worker(Child& worker, std::string_view operation, std::string_view request);

}  // namespace tessera::io
