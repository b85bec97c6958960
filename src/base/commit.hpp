// The commit that a program was built from.
#pragma once

namespace tessera {

/// `git describe` of the sources when the program was built, with "-dirty" where they had been changed; "unknown" where they were no
/// checkout, and in programs other than tessera itself, which would all be linked anew for each commit.
const char* commit();

}  // namespace tessera
