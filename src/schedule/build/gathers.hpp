// The gathers of a section: units whose compute copy is divided among ranks are gathered before a pass reads them.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "schedule/build/emitter.hpp"
#include "schedule/build/step_passes.hpp"

namespace tessera {

class Gathers {
 public:
  Gathers(Emitter& out, const Passes& passes, const StepPasses& step) : out_(out), passes_(passes), step_(step) {}

  /// Plans the gathers that these events need, in order.
  std::vector<Residency> plan(const Events& events);
  void emit_gather(const Residency& r, int number, const Events& events);
  /// Decodes the gathered copies that this event is the first to read.
  void emit_decodes(int event);
  Use weight_use(const TensorRef& tensor, int event) const;
  /// The multiplier of an fp8 matrix; absent if it has none.
  Use multiplier_use(const ValueInfo& v, int unit, int event) const;

 private:
  /// A residency's gathered copy.
  struct Gathered {
    Residency live;
    int buffer;
    std::optional<Use> blocks = {};       ///< decoded into the copy before its first use
    std::optional<Use> multipliers = {};  ///< of its matrices, unless scaling is delayed
  };

  /// Units that this pass needs gathered, in order, each once.
  std::vector<int> gathered_units(const SegmentPass& p) const;
  /// Encodes this rank's part of a unit for the gather: bytes of `encoded`.
  void emit_encode(int unit, int number, const Use& encoded, const Use& values);
  /// Computes the multipliers of matrices whose elements are divided among ranks.
  Use emit_multipliers(int unit, int number, const Use& values);
  /// The runs of this rank's part, relative to its begin.
  std::vector<EncodeRuns::Run> runs_of_part(int unit) const;

  Emitter& out_;
  const Passes& passes_;
  const StepPasses& step_;
  std::vector<std::vector<Gathered>> gathered_;             // by unit
  std::map<int, std::set<std::pair<int, int>>> to_decode_;  // by event: units and which of their copies
};

}  // namespace tessera
