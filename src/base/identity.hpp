// What a program is made of: ranks that compute together compare it, and what they leave on disk carries it.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.hpp"

namespace tessera {

struct IdentityField {
  std::string name, value;
  bool of_processor = false;  ///< follows from the machine and not from the program alone
  friend bool operator==(const IdentityField&, const IdentityField&) = default;
};
using Identity = std::vector<IdentityField>;

/// Version, commit, compiler, the instructions that it was compiled for, and the digest of the program's file.
Identity program_fields();
/// What the linker has made of all that it put into the program (its NT_GNU_BUILD_ID), of which no more than a page is read; "" where it
/// has left none.
std::string build_id();
/// Of the file that this process runs: of its build ID and its size, or where it has no ID of all its bytes. Throws Error(environment)
/// where it cannot be read.
Hash128 program_digest();

/// One field a line, for other ranks; parse_identity reads it. Names and values have no tabs and no line ends.
std::string print_identity(const Identity& identity);
Identity parse_identity(std::string_view text);
/// "version 0.2.0, commit abc, ...": for a line of a log or a checkpoint.
std::string describe(const Identity& identity);

/// A rank and what it is.
struct Member {
  int rank = 0;
  std::string host;
  Identity identity;
};
/// What makes members differ from the first one: every field that differs, with both values, rank and host, and what to do. Empty where all
/// are equal. Fields of the processor may differ where `mixed_processors`.
std::string identity_differences(std::span<const Member> members, bool mixed_processors);

}  // namespace tessera
