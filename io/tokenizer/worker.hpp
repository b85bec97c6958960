// Programs of Python, which a build carries, so that one that was moved or installed needs no file beside it; and their language
// (channel.py).
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tessera::io {

class Child;

extern const char* const worker_text;   ///< the tokenizer of a model: model_files.py, chat_template.py, worker.py
extern const char* const parquet_text;  ///< rows of Parquet files: io/tokens/parquet.py
extern const char* const tracker_text;  ///< rows for services that keep figures: io/metrics/tracker.py

/// How long a worker may take for a request, besides the time for its bytes: a start of Python from a busy disk, or a whole batch.
inline constexpr std::chrono::seconds worker_patience{600};
inline constexpr std::chrono::seconds endless_patience{0};
/// How much memory one may take: twice what the longest text takes that is tokenized in one piece by itself (TokenizeOptions). Others take
/// tens of MiB, and pyarrow a GiB whatever it reads.
inline constexpr std::int64_t worker_memory = std::int64_t{16} << 30;
inline constexpr std::int64_t endless_memory = 0;  ///< of one that learns: it grows with the words of the corpus

/// Starts one of these programs by this Python.
std::unique_ptr<Child> start_worker(const std::string& python, const char* program, std::int64_t memory);

/// The answer to a request of an operation, four letters. What the worker says of a fault is thrown as an Error; a worker that neither
/// takes nor gives a byte for `patience`, and a second for each 64 KiB of the request besides, is ended: Error(environment).
std::string ask_worker(Child& worker, std::string_view operation, std::string_view request,
                       std::chrono::seconds patience = worker_patience);

}  // namespace tessera::io
