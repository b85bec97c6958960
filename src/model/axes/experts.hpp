// Over expert-parallel ranks (GShard, arXiv:2006.16668): each has E / ep experts, and sends rows of its tokens to those that are elsewhere,
// in a block for each rank. R = ep times the rows of a block, most of which are nobody's perhaps. Alone, nothing is sent.
#pragma once
#include "model/calls/experts.hpp"

namespace tessera {

/// Choices of each expert by the tokens of the whole micro-batch, (parts,E) int32, of which tensor- and context-parallel ranks have
/// parts.
Value counts_of_all(Recorder& r, const Dispatch& to);
/// What tells the rows of blocks apart goes to where they go.
Value send_labels(Recorder& r, const Dispatch& to, Value weights);
/// Of each choice its token's row of `in` (M,C) goes to its expert.
void send_rows(Recorder& r, Value in, const Dispatch& to);
/// Which rows come here.
Arrivals arrivals(Recorder& r, Value labels, const Dispatch& to);
/// rows (R,C), expert by expert, of what was sent last. Alone they are gathered from `in`.
void take_rows(Recorder& r, Value rows, Value in, const Dispatch& to, const Arrivals& here);
/// What was made of rows (R,C) goes back: the rows as tokens have sent them.
Value return_rows(Recorder& r, Value rows, const Arrivals& here);
/// Of d (R,F), the gradient of inputs a (R,F) but for the weights that their rows count by: d_weights, and both times their weights.
/// Of tokens on other ranks, what comes to d_weights goes there (collect_weights). Where products have biases, `bias` is that of the
/// inputs' product, and d_y (R,C) the gradient of what it makes: then d_weights has what comes of it, and the bias its gradient.
void weigh_rows(Recorder& r, Value d_weights, Value d, Value a, Value weights, const Dispatch& to, const Arrivals& here, Value d_y,
                const std::string& bias);
/// The same of the shared expert's (M,S): the last weight of each token. d_weights holds the others.
void weigh_shared(Recorder& r, Value d_weights, Value d, Value a, Value weights);
/// d_weights gets what weigh_rows has found for this rank's tokens on other ranks.
void collect_weights(Recorder& r, Value d_weights, const Dispatch& to);
/// Weight and input gradient of expert_linear, the latter by way of d_x (R,K) back to where tokens are: returns it there. Alone d_x may
/// be x; among others the weight's gradient is made while it is on its way.
Value expert_backward_to_rows(Recorder& r, Value d_x, Value d_y, Value x, const Arrivals& here, const std::string& w, std::int64_t N,
                              std::int64_t K);

}  // namespace tessera
