// What the thread sanitizer is told of the emulator's threads, in a build with TESSERA_RACES: each thread of a block is one of its fibers,
// and barriers alone order them. So it reports what two threads of a block do to the same memory with no barrier between them, whatever
// order the emulator runs them in. Blocks come one after the other, and are ordered for it too.
#pragma once
#ifdef TESSERA_RACES
#include <sanitizer/tsan_interface.h>

#include <vector>

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void __tsan_read_range(void* from, long bytes);
}
#endif

namespace tessera::emulator::races {

#ifdef TESSERA_RACES

inline constexpr bool watched = true;

using Fiber = void*;
inline Fiber current() { return __tsan_get_current_fiber(); }
/// The fiber of a block's thread `i`. All blocks share them.
inline Fiber fiber(std::size_t i) {
  static std::vector<Fiber> made;
  while (made.size() <= i) made.push_back(__tsan_create_fiber(0));
  return made[i];
}
/// Just before the stack changes. Orders nothing.
inline void change_to(Fiber fiber) { __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync); }

/// What this thread did before comes before what others do after they have come to the same place.
inline void leave(void* place) { __tsan_release(place); }
inline void come(void* place) { __tsan_acquire(place); }
inline void reads(const void* from, std::size_t bytes) { __tsan_read_range(const_cast<void*>(from), static_cast<long>(bytes)); }

/// While one lives, what its thread reads and writes is the emulator's affair.
struct Unwatched {
  Unwatched() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__), AnnotateIgnoreWritesBegin(__FILE__, __LINE__); }
  ~Unwatched() { AnnotateIgnoreWritesEnd(__FILE__, __LINE__), AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
  Unwatched(const Unwatched&) = delete;
};

#else

inline constexpr bool watched = false;
struct Fiber {};
inline Fiber current() { return {}; }
inline Fiber fiber(std::size_t) { return {}; }
inline void change_to(Fiber) {}
inline void leave(void*) {}
inline void come(void*) {}
inline void reads(const void*, std::size_t) {}
struct Unwatched {
  Unwatched() {}
};

#endif

}  // namespace tessera::emulator::races
