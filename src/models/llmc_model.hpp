// llm.c's checkpoints of GPT-2: a header of 256 numbers, then tensors, each of all layers.
#pragma once
#include <string>
#include <vector>

#include "base/types.hpp"

namespace tessera {

struct LlmcModel {
  std::int64_t context = 0, vocab = 0, layers = 0, heads = 0, width = 0, padded_vocab = 0;
  DType dtype = DType::f32;
  std::int64_t bytes = 0;  ///< of the file

  struct Tensor {
    std::string name;  ///< as transformers calls it; its matrices are (out, in)
    Shape shape;
    std::int64_t begin = 0;  ///< bytes in the file
  };
  /// In the order of the file. Of the embedding the rows that are tokens' are its tensor.
  std::vector<Tensor> tensors() const;
};

/// Whether the path names a file whose name ends as theirs do, and no folder.
bool is_llmc_model(const std::string& path);

/// What the file's header says. Where it is no such file, or its size is another than the header's, `fault` says why and what to do.
LlmcModel read_llmc_model(const std::string& path, std::string& fault);

}  // namespace tessera
