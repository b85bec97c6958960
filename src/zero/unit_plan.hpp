// Where a unit's data lies on this rank, and the path of its gradient. Decided here once, by pure functions; all others read it.
#pragma once
#include <optional>
#include <vector>

#include "base/types.hpp"
#include "kernels/quantize/quantize.hpp"
#include "topology/mesh.hpp"
#include "zero/coded_parts.hpp"
#include "zero/partition.hpp"

namespace tessera {

using kernels::Wire;

/// The path of a micro-batch's gradient to the sum of a step.
struct GradientPath {
  DType sum = DType::f32;    ///< type during the reduction: fp32, bf16, or int64 fixed point (reproducible mode)
  DType kept = DType::f32;   ///< type of the step's sum, which norm and update read: the same, or bf16
  bool direct = true;        ///< kernels add to the step's sum; otherwise they write a separate fp32 gradient
  bool scattered = false;    ///< reduce-scatter to the shards' owners; otherwise all-reduce
  Wire wire = Wire::plain;   ///< encoding of scattered terms; blocks are added in fp32
  bool own = false;          ///< no reduction: each rank keeps the sum of its micro-batches
  bool keeps_error = false;  ///< error feedback: each rank adds earlier quantisation errors to its terms (LoCo)
  /// How often ranks reduce it.
  enum class Reduced : std::uint8_t { never, every_micro_batch, once } reduced = Reduced::never;
  /// Number of groups of owners with a complete sum each, which are then added up.
  int replicas = 1;
  Range held;  ///< elements of the step's sum on this rank
  /// Whether this rank's part moves to the offloaded optimizer state: for each micro-batch if sums are sharded, otherwise once a step.
  bool offloaded = false;
};

struct UnitPlan {
  Group owners;                       ///< ranks that share the unit's state
  Group copies;                       ///< the owners that share and gather its compute copy, if it is not whole
  Group sources;                      ///< ranks whose updated shards form this rank's part of the compute copy
  UnitStorage storage;                ///< what each rank keeps whole
  std::int64_t shard = 0;             ///< elements of each rank's part
  Range owned;                        ///< this rank's part, which it updates if state is sharded
  bool counted = true;                ///< this rank counts the part's norm (one replica does)
  Range state, parameters;            ///< elements of the fp32 state and of the compute copy on this rank
  Wire wire = Wire::plain;            ///< encoding of the compute copy in a gather
  bool encoded = false;               ///< stored encoded: updates write blocks, and kernels read the gathered, decoded copy
  CodedParts coded = {};              ///< fp8 matrices that a gather moves as codes, instead of `wire`
  bool parameters_offloaded = false;  ///< the compute copy is offloaded and uploaded for each use
  GradientPath gradient;

  bool is_coded() const { return !coded.parts.empty(); }
};

struct UnitRules {
  int stage = 0;                    ///< ZeRO stage
  bool reproducible = false;        ///< gradients are summed in fixed point
  DType gradients = DType::f32;     ///< type of the step's sums: f32 or bf16
  bool training = true;             ///< false: whole parameters alone
  bool offload_optimizer = false;   ///< optimizer state is offloaded; from stage 2 on gradient sums too
  double offload_ratio = 1;         ///< least share of the elements to offload, from the last units
  bool offload_parameters = false;  ///< compute copies are offloaded, except the persistent unit's
  /// ZeRO++: stage 3 gathers weights as int8 blocks (qwZ); scattered gradients travel as int4 blocks (qgZ).
  bool quantized_weights = false, quantized_gradients = false;
  bool tied = false;              ///< embedding and head share weights: both ends of a pipeline keep them whole, never quantised
  bool own_gradients = false;     ///< no gradient reduction, because momenta are reduced instead (1-bit Adam)
  bool error_feedback = false;    ///< of quantised gradients (LoCo)
  const Fp8Shape* fp8 = nullptr;  ///< fp8 products; stage 3 gathers their weights as codes if a matrix has one scale
};

/// The groups of ranks of a unit, as seen by one rank.
struct UnitGroups {
  Group owners;         ///< ranks that share the unit's state
  Group replicas = {};  ///< ranks with the same part in other groups of owners
  /// If fewer ranks than the owners share a compute copy: these ranks, and the ranks with the same part of it.
  std::optional<Group> copies = {}, sources = {};
};
UnitGroups groups_of_unit(const Mesh& mesh, Axes owners, int world_rank);

/// An all-to-all of gradient terms: each rank of a group adds the received parts to its own.
struct GradientHop {
  Group among;
  Wire wire;
  std::int64_t elements;  ///< of a rank's terms
};
/// The exchanges of a quantised gradient: first inside the groups that gather a compute copy, if there are any, then between groups with
/// fewer bytes.
std::vector<GradientHop> gradient_hops(const UnitPlan& plan, std::int64_t elements);

UnitPlan plan_unit(const Layout& layout, int unit, const UnitRules& rules, const UnitGroups& groups);

}  // namespace tessera
