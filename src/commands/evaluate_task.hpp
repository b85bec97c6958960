// tessera evaluate CHECKPOINT --task FILE
#pragma once
#include <string>

#include "generate/task.hpp"

namespace tessera {

struct TaskOptions {
  std::string checkpoint, task, details;
  RunDevice device = RunDevice::host;
  TaskTokenizer tokenizer;
  bool json = false;
};

/// Prints how many questions are answered right, and how well documents are foreseen. Kernels must be running.
int evaluate_task(const TaskOptions& options);

}  // namespace tessera
