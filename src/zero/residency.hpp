// When gathered units are live: the prefetch, max-live and reuse limits of ZeRO-3 as one pure function.
#pragma once
#include <cstdint>
#include <vector>

namespace tessera {

/// A unit's whole parameters exist from before event `issue` until after event `last`. Events are the segments of a section in order.
struct Residency {
  int unit = 0;
  int issue = 0;  ///< the gather is issued before this event
  int first = 0;  ///< first event that reads the unit
  int last = 0;   ///< last one
};

/// What one event needs is always allowed, and unless prefetch is 0, so is what the next one needs beside it: a unit that is larger than a
/// limit would else be waited for at each use.
struct ResidencyLimits {
  std::int64_t prefetch_elements = 0;   ///< gathered ahead and not yet used, at any time; 0: nothing
  std::int64_t max_live_elements = 0;   ///< gathered and live
  std::int64_t max_reuse_elements = 0;  ///< a unit stays live when at most so many elements of other units are used before its next use
};

/// `events[e]` lists the gathered units that event e reads; `elements[u]` is a unit's size. Residencies are returned in order of first use
/// and their `issue` never decreases, so that a gather lane works through them in order.
std::vector<Residency> plan_residencies(const std::vector<std::vector<int>>& events, const std::vector<std::int64_t>& elements,
                                        const ResidencyLimits& limits);

}  // namespace tessera
