// How a block of a layer, attention or feed-forward or both side by side, meets the residual stream (Block): with a norm of what it
// reads, of what it makes, or of both. R rows of the stream are this rank's; tensors are those of the block `w`: "layers.3.mlp.".
#pragma once
#include "model/axes/tensor.hpp"

namespace tessera {

struct BlockEnds {
  Value x;          ///< (R,C): the stream
  Value input;      ///< (R,C): what the block reads, norm(x); without a norm x
  Value rstd;       ///< what that norm notes of each row (norm_rows)
  Value made;       ///< (R,C): what the block has made, where that does not join the stream at once
  Value made_rstd;  ///< the same of its norm
};

/// The stream, and the values of both ends.
BlockEnds block_ends(Recorder& r);
/// Makes `input`.
void enter_block(Recorder& r, const BlockEnds& ends, const std::string& w);
/// The stream that leaves = x + scale * [norm of] the sum of the products.
void leave_block(Recorder& r, const BlockEnds& ends, const std::string& w, const std::vector<LeavingProduct>& leaving);
/// The same of what is in `made`.
void join_stream(Recorder& r, const BlockEnds& ends, const std::string& w);

/// The gradient of what the block has made, (R,C), from that of the stream.
Value enter_block_backward(Recorder& r, const BlockEnds& ends, const std::string& w);
/// Where the gradient of `input` comes to lie, (R,C): in its place, where it is not needed again.
Value gradient_of_input(Recorder& r, const BlockEnds& ends);
/// It joins the gradient of the stream.
void leave_block_backward(Recorder& r, const BlockEnds& ends, const std::string& w, Value d_input);

}  // namespace tessera
