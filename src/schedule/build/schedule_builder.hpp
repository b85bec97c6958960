// Inside of builder.hpp. builder.cpp has the programs of a run, text_programs.cpp those of a text, declare.cpp what outlives a program.
#pragma once
#include <optional>

#include "schedule/build/builder.hpp"
#include "schedule/build/section_builder.hpp"

namespace tessera {

/// Builds one schedule, program by program, each of sections.
class ScheduleBuilder {
 public:
  explicit ScheduleBuilder(const BuildRequest& request);
  Schedule build();

 private:
  // ---- Programs (builder.cpp) ----

  void build_train();
  /// The programs where updates are late. `only`: the first phase of the micro-batches is all of them.
  void build_late(StepPasses& step, bool only);
  void build_evaluate();
  /// Micro-batches of an evaluation, a chunk a section.
  void build_evaluated_chunks(StepPasses& step);
  void build_publish();
  /// Copies of what this rank saves, which a save writes while steps change the state.
  void build_saving();
  /// Copies of a step are made: a number in the host's memory becomes 0, for a thread that waits for it beside the step.
  void announce_copies(SectionBuilder& snapshot, const std::vector<Use>& copies);
  template <class F>
  void for_each_beside(const F& take) const {
    for (const Tower& tower : schedule_.towers)
      if (tower.trains_nothing()) take(tower);
  }
  SectionBuilder section(StepPasses& step, std::string name, PipelinePhase turn = {}) {
    return {frame_, buffers_, passes_, step, schedule_.sections, std::move(name), std::move(turn)};
  }
  void add_phase(ProgramKind program, const SectionBuilder& section, std::int64_t repeat = 1, std::optional<std::int64_t> micro = {}) {
    schedule_.program(program).phases.push_back({section.number(), repeat, micro});
  }

  // ---- A text (text_programs.cpp) ----

  void build_text();
  void build_text_pass(ProgramKind program, Feed feed);

  // ---- What outlives a program (declare.cpp) ----

  void declare_all();
  void declare_unit(int unit);
  void declare_sign_errors(int unit);
  Tier shard_home(int unit);
  void free_idle_requests();

  Schedule schedule_;
  const Frame frame_;
  Buffers buffers_;
  Passes passes_;
  StepPasses no_step_;                   // of sections without passes
  std::int64_t parameters_on_host_ = 0;  // elements of offloaded shards that max_in_cpu has kept from the disk
};

}  // namespace tessera
