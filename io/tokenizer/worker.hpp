// Programs of Python, which a build carries, so that one that was moved or installed needs no file beside it; and their language
// (channel.py).
#pragma once
#include <string>
#include <string_view>

namespace tessera::io {

class Child;

extern const char* const worker_text;   ///< the tokenizer of a model: worker.py
extern const char* const parquet_text;  ///< rows of Parquet files: io/tokens/parquet.py

/// The answer to a request of an operation, four letters. What the worker says of a fault is thrown as an Error.
std::string ask_worker(Child& worker, std::string_view operation, std::string_view request);

}  // namespace tessera::io
