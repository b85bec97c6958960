// Keys of the deck: the watch over ranks.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> watchdog_keys() {
  return {// [watchdog]
          {KEY(watchdog.limit), .type = duration, .unit = "time", .limits = {.least = 3, .most = 31536000}, .automatic = Auto::kept,
           .help = "If no rank starts or ends a task for this long, the log shows a table. It shows what each rank is doing, which rank "
                   "the others wait for, and that rank's stacks. Set it longer than a save that steps wait for. auto: 5 times the longest "
                   "of the last 16 steps, at least 10 s and at most half of topology.collective_timeout. During saves auto is that half."},
          {KEY(watchdog.action), .type = text,
           .help = "Reaction after the table: warn continues until topology.collective_timeout; end ends the run with status 76; off "
                   "prints nothing."}};
}

}  // namespace tessera::schema
