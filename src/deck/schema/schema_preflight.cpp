// Keys of the deck: what `tessera preflight` takes for a fault. A run does not read them.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> preflight_keys() {
  return {
      // [preflight]
      {KEY(preflight.slower), .type = real, .unit = "share", .limits = {.above = 0, .below = 1}, .fallback = "0.1",
       .help =
           "`tessera preflight` names a rank whose matrix product or copy in memory is slower than the median of all ranks by more than "
           "this."},
      {KEY(preflight.slower_exchange), .type = real, .unit = "share", .limits = {.above = 0, .below = 1}, .fallback = "0.1",
       .help = "The same of what a rank exchanges with its neighbours."},
      {KEY(preflight.slower_disk), .type = real, .unit = "share", .limits = {.above = 0, .below = 1}, .fallback = "0.5",
       .help = "The same of what it writes to and reads from a folder, whose speed others change too."},
      {KEY(preflight.temperature), .type = real, .unit = "degrees Celsius", .limits = {.least = 0, .most = 1000}, .zero = "any",
       .fallback = "95.0", .help = "A sensor of a node, or a GPU, that is hotter after the products is named."},
      {KEY(preflight.throttled), .type = integer, .unit = "events", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
       .help = "A node whose processors were slowed down by heat more often than this during the measurement is named."},
      {KEY(preflight.mended_errors), .type = integer, .unit = "errors", .limits = {.least = 0, .most = 1e12}, .fallback = "100",
       .help = "A node whose memory, or a GPU of it, has mended more errors than this is named: of the node since it was started, of a GPU "
               "since its driver was loaded."},
      {KEY(preflight.memory_errors), .type = integer, .unit = "errors", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
       .help = "The same of errors that could not be mended."},
      {KEY(preflight.free_space), .type = bytes, .unit = "bytes", .limits = {.least = 1}, .fallback = "\"auto\"", .automatic = Auto::kept,
       .help = "A folder with less room than this is named; auto is 1 GiB."},
      {KEY(preflight.same_nodes), .type = boolean, .fallback = "false",
       .help = "Differences between nodes, which are always named, are a fault: the command ends with 6."}};
}

}  // namespace tessera::schema
