// tessera evaluate CHECKPOINT --task FILE
#pragma once
#include <cstdint>
#include <string>

namespace tessera {

struct TaskOptions {
  std::string checkpoint, task, details, device, tokenizer;
  std::int64_t worker_memory = 0;  ///< bytes that the process of the tokenizer may take; 0: any
  bool json = false;
};

/// Prints how many questions are answered right, and how well documents are foreseen. Kernels must be running.
int evaluate_task(const TaskOptions& options);

}  // namespace tessera
