#include "train/observe/warnings.hpp"

#include "base/clock.hpp"

namespace tessera {

Verdict Warnings::after(const StepEnd& end) {
  if (run_.world.rank() != 0) return Verdict::go_on;
  seconds_ = seconds_ == 0 ? end.figures.seconds : 0.9 * seconds_ + 0.1 * end.figures.seconds;
  for (const std::string& line : signs_.after(end.figures, now_seconds() - run_.launched)) progress_.warn(line);
  return Verdict::go_on;
}

void Warnings::saved(std::int64_t step, double seconds) {
  if (run_.world.rank() != 0) return;
  const std::int64_t every = run_.deck.checkpoint.every;
  const bool another = every > 0 && step + every <= run_.deck.run.steps;
  if (const std::string line = signs_.after_save(step, seconds, another ? static_cast<double>(every) * seconds_ : 0); !line.empty())
    progress_.warn(line);
}

}  // namespace tessera
