// What a task does, and with what. The comment of each op gives the order of its uses.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels/fp8_runs/fp8_runs.hpp"
#include "kernels/quantize/quantize.hpp"
#include "model/record/passes.hpp"
#include "optimizer/texts/update_text.hpp"
#include "topology/communicators/communicator.hpp"
#include "topology/mesh.hpp"
#include "zero/partition.hpp"

namespace tessera {

/// The operands of the pass, then its workspace (write; of no bytes where it needs none).
struct RunPass {
  int pass = 0;  ///< of Schedule::passes
  PassKind kind = PassKind::forward;
  std::size_t beside = 0;  ///< of its calls so many, from the first, run beside a gather or a reduction: their products leave it room
};
/// Over the ranks that differ along `axes`: see Communicator for counts and strides.
/// all_gather: whole (write), shard (read). reduce_scatter: shard (write or add), whole (read), workspace (write; of no bytes where sums
/// are made in place). all_reduce: whole (add). all_to_all, rotate: blocks (write), blocks (read).
struct Collective {
  CollectiveKind kind{};
  Axes axes = 0;
  std::int64_t count = 0, stride = 0;
  DType dtype{};
  bool accumulate = false;
  std::int64_t times = 1;                ///< of an all_to_all
  Reduction reduction = Reduction::sum;  ///< of an all_reduce
  int by = 1;                            ///< of a rotate
};
/// From a stage of the pipeline to the next or the one before: data (read) of the one that sends, data (write) of the one that receives.
struct Transfer {
  bool sends = false;
  int peer = 0;  ///< rank of the world
  std::int64_t count = 0;
  DType dtype{};
  std::int64_t ahead = 0;  ///< its micro-batch is that of the section's repetition and so many
  int border = 0;          ///< with virtual stages: between the virtual stage before this number and it
};
/// int64 sums (add), fp32 values (read), scalars (add), the run's values (read; of no bytes where the loss has no scale).
struct AccumulateFixed {
  std::int64_t count = 0;
  std::int64_t limit = 0;  ///< of a sum's magnitude, so that the sum over all that it is added to cannot wrap
};
/// Any number of ranges (write).
struct Zero {};
/// Target (add), source (read): sums of what came down in pieces.
struct Add {
  std::int64_t count = 0;
  DType dtype{};
};
/// Scalars (add), scalars of another tier's tasks (read).
struct JoinSums {};
/// Scalars (add), step inputs (read).
struct CountFlags {};
/// Gradient (read), scalars (add), workspace (write), the run's values (read; of no bytes where the gradient is not scaled).
struct SumSquares {
  std::int64_t count = 0;
  DType dtype{};
};
/// Scalars (write), step inputs (read).
struct BeginStep {};
/// Gradients' scale (write), scalars (read), step inputs (read), the run's values (read).
struct ScaleGradients {};
/// Scalars (read), step inputs (read), update scalars (write), report (write), the run's values (add): the first and the last of no bytes
/// in an evaluation.
struct FinishStep {};
/// Of a piece of a matrix.
struct LinesOf {
  kernels::Lines lines;     ///< without addresses
  LinesBefore before = {};  ///< in the unit
  std::int64_t word = 0;    ///< at which the sums of its lines begin
};
/// What the update's record says, in its order; without the copy where there is none.
struct OptimizerStep {
  UpdateCall update = {};
  std::int64_t sums = 0;  ///< of a tensor, one after the other in the order of the unit's slots
  DType gradient{};
  DType parameters = DType::f32;                   ///< of the copy
  std::int64_t begin = 0;                          ///< element of the unit at which every use of elements begins
  std::vector<Piece> pieces;                       ///< tensors inside, without the padding between them
  std::vector<std::int64_t> tensor_elements = {};  ///< of each piece's whole tensor
  std::vector<LinesOf> lines = {};                 ///< of each piece, where its rows and columns have numbers
  std::vector<UpdateRates> rates;                  ///< of each piece
};
/// Matrices of a unit in bf16 (read, or where results lie in their place add), results (write, or of no bytes), workspace (write). Of each
/// matrix that this rank has to do its orthogonal factor, scaled.
struct Orthogonalize {
  OrthogonalSteps steps{};
  struct Matrix {
    std::int64_t from = 0, to = 0;  ///< elements
    std::int64_t rows = 0, columns = 0;
    float scale = 1;
    std::int64_t parts = 1;  ///< as tensor-parallel ranks have them, part_step elements apart; those of results follow each other
    bool parts_of_columns = false;
  };
  std::int64_t part_step = 0;
  std::vector<Matrix> matrices;
};
/// Target (write), source (read).
struct CopyRuns {
  DType dtype{};
  struct Run {
    std::int64_t to = 0, from = 0, elements = 0;
  };
  std::vector<Run> runs;
};
/// Biases of routers (add), the step's router totals (read), update scalars (read).
struct BalanceRouters {
  /// Layers that follow each other, here and in the model.
  struct Run {
    std::int64_t layer = 0, layers = 0;
    std::int64_t offset = 0;  ///< elements of the biases before the first one's
  };
  std::int64_t experts = 0, stride = 0;  ///< of a layer; elements from a layer's biases to the next one's
  float rate = 0;
  std::vector<Run> runs;
};
/// Values in one type (write), the same in another (read): fp32 into a compute type, or fp32 and fixed-point int64 into bf16 sums.
struct Round {
  std::int64_t count = 0;
  DType from = DType::f32, to = DType::bf16;
};

/// Blocks (write), values of a float type (read).
struct Encode {
  std::int64_t count = 0;
  DType from{};
  kernels::Wire wire{};
};
/// Blocks (write), fp32 values (read), the error that is kept of them (add), the run's values (read).
struct EncodeWithError {
  std::int64_t count = 0;
  kernels::Wire wire{};
  float beta = 0;
  std::int64_t interval = 1;  ///< updates after which the error begins at zero again
  bool first = false;         ///< of the step's gradients: with them it does
  bool scaled = false;        ///< values have the scale of the loss
};
/// Values of a float type (write), blocks (read).
struct Decode {
  std::int64_t count = 0;
  DType to{};
  kernels::Wire wire{};
};
/// fp32 sums (write or add), blocks of each member (read), one after the other.
struct SumBlocks {
  std::int64_t count = 0;  ///< elements of a member
  int members = 1;
  bool accumulate = false;
  kernels::Wire wire{};
};

/// Histories (add), multipliers (write), largest magnitudes (add): see kernels/fp8_history.
struct UpdateFp8Scales {
  std::int64_t matrices = 0, length = 0;
  int margin = 0;
  bool enters = true;  ///< what the step has found
};

/// A block of runs (write), a rank's part of a unit in bf16 (read), multipliers (read), largest magnitudes (add; of no bytes where they are
/// known).
struct EncodeRuns {
  struct Run {
    kernels::Fp8Run run;
    std::int64_t multiplier = 0;  ///< of codes: its number, and that of the magnitude
  };
  std::vector<Run> runs;
};
/// A unit in bf16 (write), the blocks of all parts (read).
struct DecodeRuns {
  std::vector<kernels::Fp8Run> runs;
};
/// Largest magnitudes (write), a rank's part of a unit in bf16 (read).
struct FindMagnitudes {
  std::int64_t count = 0;  ///< of magnitudes
  std::vector<EncodeRuns::Run> runs;
};
/// Largest magnitudes of matrices, which become multipliers of E4M3 (add).
struct ScaleMatrices {
  std::int64_t count = 0;
};

/// Where a unit's tensors lie in blocks of signs, one a rank: words of each, then the scales of all.
struct SignBlocks {
  std::int64_t ranks = 1;
  std::int64_t words = 0;  ///< of a block, scales among them
  struct Tensor {
    std::int64_t offset = 0, elements = 0;  ///< in the unit
    std::int64_t part = 0;                  ///< elements of a rank's part, whole words
    std::int64_t mine = 0;                  ///< of this rank's part those that there are
    std::int64_t mean = 0;                  ///< at which the part begins among those of all tensors
    std::int64_t word = 0, scale = 0;       ///< of a block
  };
  std::vector<Tensor> tensors;
};
/// Blocks (write), what is kept of what signs have taken (add), sums (write), momenta (read; of no bytes where what is kept holds the mean
/// of all ranks' already: then one block, of this rank's parts).
struct PackSigns {
  SignBlocks blocks;
  bool of_mean = false;
};
/// What is kept (add), blocks of each rank (read): the mean of this rank's parts joins it.
struct SumSigns {
  SignBlocks blocks;
};
/// Momenta (write), blocks of each rank's parts (read).
struct UnpackSigns {
  SignBlocks blocks;
};

/// Packed copy (write), weight (read); of delayed scaling its multiplier (read) and its largest magnitude (add), else of no bytes.
struct PackWeight {
  kernels::Gemm product;  ///< that will read the copy
};

/// Target (write), source (read): the same bytes in another tier.
struct Copy {};
/// Target in memory (write) and source on disk (read), any number of times; and the other way round.
struct ReadDisk {};
struct WriteDisk {};

using Op = std::variant<RunPass, Collective, AccumulateFixed, Zero, CountFlags, SumSquares, BeginStep, ScaleGradients, FinishStep,
                        OptimizerStep, Round, PackWeight, Copy, Add, JoinSums, ReadDisk, WriteDisk, Transfer, BalanceRouters, Encode,
                        EncodeWithError, Decode, SumBlocks, Orthogonalize, CopyRuns, UpdateFp8Scales, EncodeRuns, DecodeRuns,
                        FindMagnitudes, ScaleMatrices, PackSigns, SumSigns, UnpackSigns>;

}  // namespace tessera
