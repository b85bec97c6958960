// One HTML file of a run, with all that draws it inside: nothing is fetched when it is opened.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "report/page/advice.hpp"

namespace tessera {

/// What the simulator predicts of a step.
struct Forecast {
  std::string machine;
  double seconds = 0, tokens_per_second = 0, mfu_full = 0, mfu_causal = 0;
  TraceBars bars = {};
};

struct PageInput {
  RunHistory run;
  std::string state = {};   ///< as `tessera runs` says it; empty: what the events tell
  std::string health = {};  ///< the same
  int reload_seconds = 0;   ///< the page is written again while the run goes on; 0: it is not
  std::optional<StepTraces> traced = {};
  std::optional<Deck> deck = {};     ///< where deck.toml can be read
  std::vector<TierUse> memory = {};  ///< of the plan
  int ranks_per_node = 0;            ///< 0: not known
  std::string no_memory = {};        ///< why there is none
  std::optional<Forecast> forecast = {};
  std::string no_forecast = {};  ///< why there is none, and what to give
  AskSimulator ask = {};
};

/// A page and what it shows.
class RunPage {
 public:
  explicit RunPage(PageInput input);
  /// The data behind charts, tables and advice.
  Json data() const;
  std::string html() const;

 private:
  PageInput in_;
  RunFigures figures_;
  std::vector<Advice> advice_;
};

/// The last part of a run's folder, however that was written.
std::string title_of_run(const std::string& folder);

/// Of a document: its head up to the style, then `body`, then the data and what draws it.
std::string html_document(const std::string& title, const std::string& body, const Json& drawn, int reload_seconds);

/// Whether this build carries the library that draws charts; without it html() throws Error(usage) that says what to install.
bool can_draw_pages();

}  // namespace tessera
