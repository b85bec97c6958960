// What functions need to emit the tasks of a section. Each file beside this one emits one part of a step:
//   gathers, section_passes, section_parted, section_pipeline, offloaded_streams     the passes of a micro-batch
//   micro_gradients, gradient_reduction, block_reduction                             its gradients
//   unit_update, update_sums, sign_reduction, matrix_updates, offloaded_state        updates
//   step_ends, tower_sums, fp8_scales                                                begin and end of a step
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "schedule/build/buffers.hpp"

namespace tessera {

class Emitter {
 public:
  /// Begins a section at the end of `sections`.
  Emitter(const Frame& f, Buffers& b, std::vector<Section>& sections, std::string name)
      : frame(f), buffers(b), sections_(sections), number_(static_cast<int>(sections.size())) {
    sections.push_back({std::move(name), {}});
  }

  /// The section's number.
  int number() const { return number_; }
  Task& emit(Task task) {
    std::vector<Task>& tasks = sections_[index(number_)].tasks;
    tasks.push_back(std::move(task));
    return tasks.back();
  }

  const Frame& frame;
  Buffers& buffers;

 private:
  std::vector<Section>& sections_;
  const int number_;
};

}  // namespace tessera
