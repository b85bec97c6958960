// Rows of the embedding, whose vocabulary tensor-parallel ranks share.
#pragma once
#include "model/record/recorder.hpp"

namespace tessera {

/// rows (M,C) of w (V,C); zeros for tokens that other ranks have.
void embedding(Recorder& r, Value rows, const std::string& w);
void embedding_backward(Recorder& r, Value d_rows, const std::string& w);

}  // namespace tessera
