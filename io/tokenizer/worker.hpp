// The text of worker.py, which a build carries, so that a program that was moved or installed needs no file beside it.
#pragma once

namespace tessera::io {

extern const char* const worker_text;

}  // namespace tessera::io
