#include "train/observe/step_profile.hpp"

#include "base/log.hpp"
#include "io/files/posix_file.hpp"

namespace tessera {

StepProfile::StepProfile(const RunParts& run, ProgressLog& progress)
    : run_(run), progress_(progress), on_(run.deck.run.profile && run.deck.run.device == RunDevice::host) {
  if (run.deck.run.profile && !on_) info("run.profile times kernels of the host; for a GPU use `nsys profile` (docs/timelines.md)");
  if (!on_) return;
  run.world.barrier();
  run.world.together([&] { stream_ = measure_stream_rate(); });
}

void StepProfile::before(std::int64_t) {
  if (on_) run_.engine.take_call_seconds();  // of evaluations since the last step
}

Verdict StepProfile::after(const StepEnd& end) {
  // The first step of a start does what is done once.
  if (on_ && run_.world.rank() == 0 && end.done > run_.first_step + 1)
    profile_.add(run_.engine.schedule(), run_.engine.take_call_seconds(), *end.timeline, end.figures.seconds);
  return Verdict::go_on;
}

void StepProfile::finish(std::int64_t) {
  if (!on_) return;
  run_.world.together([&] {
    if (run_.world.rank() != 0) return;
    if (profile_.steps() == 0) return info("run.profile: only one step was made, which includes one-time work; nothing is reported");
    const FloorRates rates{.flops = run_.yardstick.rate() / run_.world.ranks(), .bytes = stream_};
    const std::string text = profile_.json(rates).dump() + "\n";
    io::AtomicFile file(run_.folder.profile());
    file.file().write(0, text.data(), text.size());
    file.commit();
    progress_.note(fmt::format("kernels of rank 0 compared with their bounds, {:.0f} GFLOP/s and {:.1f} GB/s, means of {} steps, in {}:{}",
                               1e-9 * rates.flops, 1e-9 * rates.bytes, profile_.steps(), run_.folder.profile(), profile_.print(rates)));
  });
}

}  // namespace tessera
