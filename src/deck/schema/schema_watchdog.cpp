// Keys of the deck: the watch over ranks.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> watchdog_keys() {
  return {
      // [watchdog]
      {KEY(watchdog.limit), .type = duration, .unit = "time", .limits = {.least = 3, .most = 31536000}, .fallback = "\"auto\"",
       .automatic = Auto::kept,
       .help =
           "When no rank has begun or ended a task for so long, a table says what each rank is at, whom the others wait for, and the "
           "stacks of that one. Longer than a save that steps wait for. auto: 5 times the longest of the latest 16 steps, at least 10 s "
           "and at most half of topology.collective_timeout, which it is in saves."},
      {KEY(watchdog.action), .type = text, .fallback = "\"warn\"",
       .help =
           "What happens then: warn, and the run goes on until topology.collective_timeout; end, with status 76; off, nothing is said."}};
}

}  // namespace tessera::schema
