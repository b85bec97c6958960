// The kernels that the text of a layer with experts calls. R rows of a micro-batch, expert by expert; `w` names the first of the matrices
// of this rank's experts. What travels between ranks is in axes/experts.hpp.
#pragma once
#include "kernels/dispatch/dispatch.hpp"
#include "kernels/router/router.hpp"
#include "model/record/recorder.hpp"

namespace tessera {

/// Where the rows of experts come from and go to (kernels/dispatch).
struct Dispatch {
  Value counts;   ///< (E) int32
  Value offsets;  ///< (E+1) int32
  Value places;   ///< (M,k) int32
  Value sources;  ///< (R) int32
};

/// Rows that have come to this rank's experts (kernels/expert_blocks); alone, its own.
struct Arrivals {
  Value offsets;  ///< (E / ep + 1) int32
  Value order;    ///< (R) int32, of sorted rows; alone absent, as the others are
  Value places;   ///< (R) int32, of rows as they have arrived
  Value weights;  ///< (R) fp32, of the same
};

/// What a token's rows come together with.
struct CombineExtra {
  Value weights = {};  ///< (M,k), with `shared` (M,k+1): what rows count for; absent: 1
  Value shared = {};   ///< (M,C)
  Value add = {};      ///< (M,C)
};

kernels::RouterShape router_shape(const ModelShape& s);

/// The k experts of each token, (M,k) int32, and what they count for, (M, slots) fp32, of logits (M, E + shared) fp32. With a bias (E)
/// fp32 they are chosen by their probabilities and it.
void router(Recorder& r, Value experts, Value weights, Value logits, Value bias);
/// Gradient of logits, from those of weights and by the router's own losses.
void router_backward(Recorder& r, Value d_logits, Value d_weights, Value weights, Value experts, Value logits, Value counts);
/// The router's losses, drops and loads join the step's. Of a text: nothing.
void router_totals(Recorder& r, Value logits, Value experts, Value counts, const Dispatch& d);
Dispatch dispatch(Recorder& r, Value experts);
/// out (R,C): each row is that of its token in `in` (M,C).
void gather_rows(Recorder& r, Value out, Value in, const Dispatch& d);
/// out (M,C) of each token: the sum of its rows (R,C), and what `extra` adds.
void combine_rows(Recorder& r, Value out, Value rows, const Dispatch& d, const CombineExtra& extra);
/// Of d, the gradient of inputs a but for the weights that `rows` says their rows count by: d_weights, and both times their weights.
/// `clears`: elements of d_weights, of which some belong to no row; none without `sources`.
void weigh(Recorder& r, Value d_weights, Value d, Value a, Value weights, const kernels::WeighRows& rows, Value sources,
           std::int64_t clears);
/// y (R,N) = x (R,K) w (E,N,K)^T, each row with its expert's.
void expert_linear(Recorder& r, Value y, Value x, const Arrivals& here, const std::string& w, std::int64_t N, std::int64_t K);
/// y (R,N) += the bias of each row's expert, of those (E,N) that `bias` is the first of.
void add_expert_bias(Recorder& r, Value y, const Arrivals& here, const std::string& bias, std::int64_t N);
/// What rows' weights are, and which of them is a row's: as weigh() and kernels::WeighRows have them.
struct RowWeights {
  Value weights, sources;
  std::int64_t k = 1, slots = 1;
};
/// The gradient of biases: sums of the rows of d_y (R,N), each times its weight where there are weights.
void expert_bias_gradient(Recorder& r, Value d_y, const Arrivals& here, const std::string& bias, std::int64_t N, const RowWeights& rows);
/// d_weights += of each row the product of d_y (R,N) and its expert's bias.
void weigh_expert_bias(Recorder& r, Value d_weights, Value d_y, const Arrivals& here, const std::string& bias, std::int64_t N,
                       const RowWeights& rows);
void expert_weight_gradient(Recorder& r, Value d_y, Value x, const Arrivals& here, const std::string& w, std::int64_t N, std::int64_t K);
void expert_input_gradient(Recorder& r, Value d_x, Value d_y, const Arrivals& here, const std::string& w, std::int64_t N, std::int64_t K);

}  // namespace tessera
