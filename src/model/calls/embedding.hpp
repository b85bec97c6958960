// Rows of the embedding, whose vocabulary tensor-parallel ranks share, and vectors of positions, which each adds to its rows of the
// stream.
#pragma once
#include "model/record/recorder.hpp"

namespace tessera {

/// rows (M,C) of w (V,C); zeros for tokens that other ranks have.
void embedding(Recorder& r, Value rows, const std::string& w);
void embedding_backward(Recorder& r, Value d_rows, const std::string& w);

/// out (R,C) += the learned vectors of its rows' positions, where the model has them.
void add_positions(Recorder& r, Value out, const std::string& w);
void add_positions_backward(Recorder& r, Value d_out, const std::string& w);

}  // namespace tessera
