#include "train/run/agree_on_start.hpp"

#include "topology/failure/signals.hpp"
#include "train/save/saving.hpp"

namespace tessera {

StartPoint agree_on_start(const World& world, const Deck& deck) {
  StartPoint start{.folder = {deck.run.output_dir}};
  const auto on_rank_0 = [&](const auto& part) {
    world.together([&] {
      leave_if_stopped();
      if (world.rank() == 0) part();
    });
  };
  on_rank_0([&] { start = reach_run_folder(deck); });
  // In pieces: no collective waits for the end of another run, and a signal is heard meanwhile.
  for (bool waits = true; waits; waits = world.sum(waits) > 0) {
    waits = false;
    on_rank_0([&] { waits = !start.lock.wait(0.5); });
  }
  on_rank_0([&] { examine_run_folder(deck, start); });
  require_seen_by_all(world, start.folder.path, start.lock.claim());
  if (deck.run.resume == "newest-good")
    start.checkpoint = choose_verified(world, "run.resume = newest-good", start.candidates);
  else
    start.checkpoint = world.broadcast_text(start.checkpoint);
  return start;
}

}  // namespace tessera
