// tessera inspect A --diff B: in what two checkpoints differ, whatever layouts wrote them; or a checkpoint and an exported model, whose
// type the checkpoint's values are rounded to.
#pragma once
#include <string>

namespace tessera {

struct DiffOptions {
  std::string path, other, tensor;  ///< of all tensors where `tensor` is empty
  bool json = false;
};

/// Prints what differs. Returns the exit status: ok where every value that is compared has the same bits, else checkpoint.
int run_diff(const DiffOptions& options);

}  // namespace tessera
