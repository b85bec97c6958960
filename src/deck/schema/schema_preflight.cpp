// Keys of the deck: what `tessera preflight` takes for a fault. A run does not read them.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> preflight_keys() {
  return {// [preflight]
          {KEY(preflight.slower), .type = real, .unit = "share", .limits = {.above = 0, .below = 1},
           .help = "`tessera preflight` names a rank whose matrix product or memory copy is slower than the median of all ranks by more "
                   "than this."},
          {KEY(preflight.slower_exchange), .type = real, .unit = "share", .limits = {.above = 0, .below = 1},
           .help = "The same limit for what a rank exchanges with its neighbours."},
          {KEY(preflight.slower_disk), .type = real, .unit = "share", .limits = {.above = 0, .below = 1},
           .help = "The same limit for writing to and reading from a folder, whose speed other users change too."},
          {KEY(preflight.temperature), .type = real, .unit = "degrees Celsius", .limits = {.least = 0, .most = 1000}, .zero = "any",
           .help = "Names a sensor of a node, or a GPU, that is hotter than this after the products."},
          {KEY(preflight.throttled), .type = integer, .unit = "events", .limits = {.least = 0, .most = 1e12},
           .help = "Names a node whose processors were slowed down by heat more often than this during the measurement."},
          {KEY(preflight.mended_errors), .type = integer, .unit = "errors", .limits = {.least = 0, .most = 1e12},
           .help = "Names a node whose memory, or one of whose GPUs, has corrected more errors than this. A node counts since it was "
                   "started, a GPU since its driver was loaded."},
          {KEY(preflight.memory_errors), .type = integer, .unit = "errors", .limits = {.least = 0, .most = 1e12},
           .help = "The same limit for errors that could not be corrected."},
          {KEY(preflight.free_space), .type = bytes, .unit = "bytes", .limits = {.least = 1}, .automatic = Auto::kept,
           .help = "Names a folder with less free space than this; auto is 1 GiB."},
          {KEY(preflight.same_nodes), .type = boolean,
           .help = "Treats differences between nodes, which are always named, as a fault: the command ends with status 6."}};
}

}  // namespace tessera::schema
