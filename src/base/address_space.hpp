// The limit of a process's addresses (RLIMIT_AS, `ulimit -v`): libraries that meet it may crash without a word.
#pragma once
#include <cstdint>
#include <string>

namespace tessera {

/// " RLIMIT_AS (ulimit -v) leaves this process 195.31 MiB of addresses, and 117.19 MiB of them are taken: raise that limit, or set
/// ulimit -v unlimited." Empty where there is no limit.
std::string address_space_text();

/// Throws Error(memory) where the limit leaves fewer addresses than so many, which `what` takes.
void require_address_space(std::int64_t bytes, const char* what);

}  // namespace tessera
