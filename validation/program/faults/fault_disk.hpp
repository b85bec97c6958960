// A disk that misbehaves as it is told to: a test that links this has calls on files interposed, and liburing's; so has a program for which
// it is preloaded, with the rules in FAULT_DISK.
//   "EIO:write:/local:3:2;SHORT:read:/local"     error:call:part of the file's path[:first call (1)[:how many (all)]]; the first rule that
//   fits counts
// Calls: read, write, reserve (fallocate), nameless (O_TMPFILE), direct (O_DIRECT), dioalign (statx), unlink (of what is open), lock, sync,
// ring (io_uring at all, whatever the path), register (buffers). Beside errors by name, of reads and writes: SHORT (half of it is moved),
// STALL (nothing is, until the rules change).
#pragma once

namespace tessera::test {

/// The rules from now on; what is stalled goes on. Calls are counted anew.
void fault_disk(const char* rules);

}  // namespace tessera::test
