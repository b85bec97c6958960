#include "train/observe/warnings.hpp"

#include <fmt/format.h>

#include "base/clock.hpp"
#include "train/observe/ledger.hpp"
#include "train/save/save_room.hpp"

namespace tessera {

Verdict Warnings::after(const StepEnd& end) {
  if (run_.world.rank() != 0) return Verdict::go_on;
  seconds_ = seconds_ == 0 ? end.figures.seconds : 0.9 * seconds_ + 0.1 * end.figures.seconds;
  for (const std::string& line : signs_.after(end.figures, now_seconds() - run_.launched)) say(end.done, line);
  name_stragglers(end.done);
  return Verdict::go_on;
}

void Warnings::name_stragglers(std::int64_t step) {
  for (const Straggler& s : run_.world.take_stragglers()) {
    say(step, fmt::format("rank {} on {} is slow: its own work takes {:.1f} ms a step, while ranks with the same work take {:.1f} ms. Most "
                          "of the difference is in {}; look for other load there, and at clocks and temperatures",
                          s.rank, s.host, 1e3 * s.seconds, 1e3 * s.median, s.kind));
    metrics_.record({{"step", step},
                     {"stragglers", io::NamedNumbers{{fmt::format("rank {} on {}: {}", s.rank, s.host, s.kind), s.seconds / s.median}}}});
  }
}

void Warnings::saved(std::int64_t step, double seconds) {
  if (run_.world.rank() != 0) return;
  const std::int64_t every = run_.deck.checkpoint.every;
  const bool another = every > 0 && step + every <= run_.deck.run.steps;
  if (const std::string line = signs_.after_save(step, seconds, another ? static_cast<double>(every) * seconds_ : 0); !line.empty())
    say(step, line);
  if (const auto room = lacking_room(run_.engine, run_.world.ranks(), run_.deck, step, run_.folder.checkpoints(), run_.claim->lineage()))
    if (const std::string line = signs_.no_room(step, run_.folder.checkpoints(), room->needed, room->free); !line.empty()) say(step, line);
}

void Warnings::say(std::int64_t step, const std::string& line) {
  progress_.warn(line);
  run_.ledger.warned(step, line);
}

}  // namespace tessera
