// What goes with [guards].
#include <fmt/format.h>

#include "deck/rules/draft.hpp"

namespace tessera {

void check_guards(Draft& draft) {
  const GuardKeys& guards = draft.deck.guards;
  if (draft.good({"guards.spike", "guards.skip_limit"}) && guards.spike == SpikeMode::skip && guards.skip_limit == 0)
    draft.fault({"guards.spike", "guards.skip_limit"},
                "\"skip\" skips at most guards.skip_limit steps in a row, and that is 0; set guards.skip_limit, for example to 3");
  if (draft.good({"guards.spike", "checkpoint.every"}) && guards.spike == SpikeMode::rollback && draft.deck.checkpoint.every == 0)
    draft.fault({"guards.spike", "checkpoint.every"},
                "\"rollback\" needs a checkpoint to return to, and checkpoint.every = 0 saves none before the end; set checkpoint.every");
  if (draft.good({"guards.spike"}) && guards.spike == SpikeMode::off)
    for (const char* key : {"guards.threshold", "guards.window"})
      if (draft.differs(key)) draft.idle(key, "guards.spike", "has no effect with guards.spike = \"off\"; set that, or leave this key out");
  if (!draft.good({"guards.replay_every", "run.reproducible", "zero.error_feedback.enabled", "precision.fp8"}) || guards.replay_every == 0)
    return;
  if (!draft.deck.run.reproducible)
    draft.fault({"guards.replay_every", "run.reproducible"},
                "equal bits of a repeated step need run.reproducible = true; set that, or guards.replay_every = 0");
  if (draft.deck.precision.fp8 == Fp8Recipe::tensorwise_delayed)
    draft.fault({"guards.replay_every", "precision.fp8"},
                "delayed scales depend on the steps before, so a repeated step has other scales; set another precision.fp8, or "
                "guards.replay_every = 0");
}

}  // namespace tessera
