// Streams that forward passes keep, on the host or on disk until the backward pass reads them (activation.offload).
#pragma once
#include <map>
#include <string>

#include "schedule/build/emitter.hpp"
#include "schedule/build/step_passes.hpp"

namespace tessera {

class OffloadedStreams {
 public:
  OffloadedStreams(Emitter& out, const Passes& passes, const StepPasses& step) : out_(out), passes_(passes), step_(step) {}

  /// Plans which streams are offloaded, and between which of these events.
  void plan(const Events& events);
  bool contains(int stream) const { return offloaded_.contains(stream); }
  /// The name of a stream's buffer after its return.
  static std::string returned(int stream) { return "returned.stream." + std::to_string(stream); }
  /// Streams that leave after this event (`leave`), or come back before it.
  void emit_copies(int event, bool leave);

 private:
  struct Absence {
    int leaves_after = 0, returns_before = 0;  // events
  };

  Emitter& out_;
  const Passes& passes_;
  const StepPasses& step_;
  std::map<int, Absence> offloaded_;  // by stream
};

}  // namespace tessera
