// What plan and simulator say of the deck of a run: its memory, its step, and what a change of a key would do.
#pragma once
#include <string>

#include "report/page/page.hpp"

namespace tessera {

struct OutlookOptions {
  std::string machine;  ///< a profile's file; empty: nothing is predicted
  int ranks_per_node = 0;
};

/// Fills what of a page follows from the run's deck, or says there why it cannot be known.
void add_outlook(PageInput& in, const OutlookOptions& options);

}  // namespace tessera
