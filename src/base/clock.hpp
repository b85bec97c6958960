// Wall time for measurements.
#pragma once
#include <chrono>

namespace tessera {

/// Seconds on a steady clock since an arbitrary start.
inline double now_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Seconds since the begin of 1970 in UTC, as clocks on walls and other programs have them.
inline double unix_seconds() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace tessera
