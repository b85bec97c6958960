// Tokens on their way to experts and back. Choices (M,k) of tokens are sorted by expert and, of one expert, by token; each becomes a row
// of the matrices that experts work on. All of it is integers and copies, and sums in a fixed order: the same bits for any number of
// threads. With experts on other ranks, rows are exchanged between gather_rows and the experts, and between the experts and combine_rows
// (kernels/expert_blocks).
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// Choices that an expert takes where `tokens` make k each: `factor` times its share, and no more than there are tokens. 0: all of them.
TESSERA_BOTH inline std::int64_t expert_capacity(double factor, std::int64_t tokens, std::int64_t k, std::int64_t E) {
  if (factor == 0) return tokens;
  const double share = factor * static_cast<double>(tokens * k) / static_cast<double>(E);
  if (share >= static_cast<double>(tokens)) return tokens;
  const auto whole = static_cast<std::int64_t>(share), up = whole + (static_cast<double>(whole) < share ? 1 : 0);
  return up < 1 ? 1 : up;
}

/// Choices that are E are padding's, and nobody's: they count nowhere and get no row. Expert e takes its first choices, as many as
/// expert_capacity() says of the tokens that are no padding: offsets[e + 1] - offsets[e]. Its rows are offsets[e] to offsets[e + 1], and
/// rows from offsets[E] on are nobody's. In several blocks, equal parts of the experts have equal parts of the rows, each with nobody's at
/// its end.
struct PlanDispatch {
  std::int32_t* counts = nullptr;         ///< (E) choices that fell on each expert
  std::int32_t* offsets = nullptr;        ///< (E+1) as without blocks
  std::int32_t* places = nullptr;         ///< (M,k) the row of each choice; -1: dropped, or padding's
  std::int32_t* sources = nullptr;        ///< (rows) the choice m k + j of each row; -1: nobody's
  const std::int32_t* experts = nullptr;  ///< (M,k)
  std::int64_t M = 0, k = 0, E = 0;
  double capacity_factor = 0;  ///< 0: dropless
  std::int64_t rows = 0;       ///< of each block at least rows_of_a_block()
  std::int64_t blocks = 1;     ///< divides E and rows
  /// Rows that the experts of a block have together at most.
  TESSERA_BOTH std::int64_t rows_of_a_block() const {
    const std::int64_t experts_there = E / blocks, choices = M * (k < experts_there ? k : experts_there);
    const std::int64_t taken = experts_there * expert_capacity(capacity_factor, M, k, E);
    return choices < taken ? choices : taken;
  }
};
TESSERA_OP(plan_dispatch, (const Context& context, const PlanDispatch& arguments), (context, arguments))
TESSERA_WORKSPACE(plan_dispatch_workspace_bytes, PlanDispatch)

/// out row r = in row of the token whose choice it is; nobody's rows are zeros.
struct GatherRows {
  void* out = nullptr;                    ///< (rows,C)
  const void* in = nullptr;               ///< (M,C)
  const std::int32_t* sources = nullptr;  ///< (rows)
  std::int64_t k = 0, rows = 0, C = 0;
  DType dtype = DType::f32;
};
TESSERA_OP(gather_rows, (const Context& context, const GatherRows& arguments), (context, arguments))

/// out of a token = its rows, in the order of its choices, then `shared` and `addend`, where there are such; summed in fp32. Rows, and
/// `shared` unless it is not weighed, count by their weights, or as they are. What was dropped adds nothing.
struct CombineRows {
  void* out = nullptr;                   ///< (M,C)
  const void* rows = nullptr;            ///< (rows,C)
  const std::int32_t* places = nullptr;  ///< (M,k)
  const float* weights = nullptr;        ///< (M,k), with `shared` that is weighed (M,k+1); null: all are 1
  const void* shared = nullptr;          ///< (M,C)
  bool weighs_shared = true;
  const void* addend = nullptr;  ///< (M,C); may be out
  std::int64_t M = 0, k = 0, C = 0;
  DType dtype = DType::f32;
};
TESSERA_OP(combine_rows, (const Context& context, const CombineRows& arguments), (context, arguments))

/// The backward pass of weights that rows count by. Outputs y = w a W of rows have, by their gradient d_y, the raw gradient d = d_y W of
/// their inputs a, and then: d_w = a . d, d_a = w d, and W's gradient is that of inputs w a. So no output is kept. Of nobody's rows nothing
/// is touched.
struct WeighRows {
  float* d_weights = nullptr;             ///< (M,slots): of those that rows are for; others are left alone
  void* d = nullptr;                      ///< (rows,F) times its weight, in place
  void* a = nullptr;                      ///< (rows,F) times its weight, in place
  const float* weights = nullptr;         ///< (M,slots)
  const std::int32_t* sources = nullptr;  ///< (rows) choices m k + j; null: row m is for the last slot of token m
  std::int64_t k = 0, slots = 0, rows = 0, F = 0;
  DType dtype = DType::f32;
};
TESSERA_OP(weigh_rows, (const Context& context, const WeighRows& arguments), (context, arguments))

}  // namespace tessera::kernels
