// Products of linear layers. `w` names a tensor of the table, with those joined to it; what its adapters add follows.
#pragma once
#include "model/record/recorder.hpp"

namespace tessera {

/// What a linear layer does beside its product.
struct LinearExtra {
  std::string bias = {};          ///< (N), added: a tensor's name
  Value add = {};                 ///< (M,N), added: a residual
  std::optional<Rows> rows = {};  ///< of x; y holds these alone,
  std::int64_t y_first = 0;       ///< from this row on
  bool fp32 = false;              ///< y is fp32 whatever the compute type
  bool adds = false;              ///< y += instead of y =, with no `add`
  CountedRows counted = {};       ///< of `rows` those that are taken; the others of y stay as they are
};

/// y (M,N) = x (M,K) w (N,K)^T, plus what adapters of w and `extra` add.
void linear(Recorder& r, Value y, Value x, const std::string& w, std::int64_t N, std::int64_t K, const LinearExtra& extra = {});
/// The gradient of w and its adapters from d_y (M,N) and x (M,K). With `only`, d_y holds these rows of x alone, of which those are taken
/// that are counted.
void weight_gradient(Recorder& r, Value d_y, Value x, const std::string& w, std::int64_t N, std::int64_t K,
                     const std::optional<Rows>& only = {}, const CountedRows& counted = {});
/// d_x (M,K) = d_y w, or += where it `adds`. With `only`, d_y holds these rows of d_x alone.
void input_gradient(Recorder& r, Value d_x, Value d_y, const std::string& w, std::int64_t N, std::int64_t K,
                    const std::optional<Rows>& only = {}, bool adds = false, const CountedRows& counted = {});
/// Both, in this order: d_x may be x.
void linear_backward(Recorder& r, Value d_x, Value d_y, Value x, const std::string& w, std::int64_t N, std::int64_t K,
                     const std::optional<Rows>& only = {}, const CountedRows& counted = {});
/// The bias's gradient: sums over the rows of d_y (M,N). With `only`, d_y holds these rows alone.
void bias_backward(Recorder& r, Value d_y, const std::string& bias, std::int64_t N, const std::optional<Rows>& only = {},
                   const CountedRows& counted = {});

}  // namespace tessera
