// What of a unit lies where on this rank, and how its gradient gets there: decided here once, and read by all who ask. Pure functions.
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

/// The way of a micro-batch's gradient to the sum of a step.
struct GradientPath {
  DType sum = DType::f32;    ///< of sums while they meet: fp32, bf16, or int64 in fixed point (reproducible mode)
  DType kept = DType::f32;   ///< of the step's sum, which norm and update read: the same, or bf16
  bool direct = true;        ///< kernels add into the step's sum; else they write the micro-batch's gradient, fp32, beside it
  bool scattered = false;    ///< sums of ranks meet at each shard's owner; else all ranks get them whole
  Wire wire = Wire::plain;   ///< how terms of scattered sums travel; in blocks they are added in fp32
  bool own = false;          ///< sums of ranks never meet: each keeps that of its micro-batches
  bool keeps_error = false;  ///< each rank adds to its terms what blocks have taken from those before (LoCo)
  enum class Meeting : std::uint8_t { never, every_micro_batch, once } meeting = Meeting::never;
  /// Groups of owners that have a sum each, which meet when it is whole; 1: there is one.
  int replicas = 1;
  Range held;  ///< elements of the step's sum that lie on this rank
  /// Whether this rank's part goes down to where its optimizer state is: each micro-batch's where sums are not whole, else the step's.
  bool offloaded = false;
};

struct UnitPlan {
  Group owners;                       ///< ranks that share the unit's state
  Group copies;                       ///< of these the ranks that share its compute copy, and gather it, where it is not whole
  Group sources;                      ///< ranks whose updated shards this rank's part of the compute copy is made of
  UnitStorage storage;                ///< what of it each keeps whole
  std::int64_t shard = 0;             ///< elements of each rank's part
  Range owned;                        ///< this rank's part; it updates it where state is not whole
  bool counted = true;                ///< and counts its norm: one of its replicas does
  Range state, parameters;            ///< elements of the fp32 state and of the compute copy that lie on this rank
  Wire wire = Wire::plain;            ///< how the compute copy travels to whoever gathers it
  bool encoded = false;               ///< and so it lies: each update writes the blocks, and kernels read what a gather makes of them
  CodedParts coded = {};              ///< of matrices that go to products in fp8 alone: so a gather moves it, in place of a wire
  bool parameters_offloaded = false;  ///< the compute copy lies below the memory that kernels use, and comes up for each use
  GradientPath gradient;

  bool is_coded() const { return !coded.parts.empty(); }
};

struct UnitRules {
  int stage = 0;                    ///< of ZeRO
  bool reproducible = false;        ///< gradients are summed in fixed point
  DType gradients = DType::f32;     ///< or bf16, of the step's sums
  bool training = true;             ///< false: parameters alone, whole
  bool offload_optimizer = false;   ///< optimizer state, and the sums of gradients from stage 2 on, lie below the memory that kernels use
  double offload_ratio = 1;         ///< of the elements, those of the last units, at least
  bool offload_parameters = false;  ///< and so do the compute copies, but for those of the persistent unit
  /// ZeRO++: stage 3 gathers weights as blocks of int8 codes (qwZ); terms of scattered gradients travel as blocks of int4 codes (qgZ).
  bool quantized_weights = false, quantized_gradients = false;
  bool tied = false;              ///< the embedding is the head too: both ends of a pipeline keep it whole, and no layout quantises it
  bool own_gradients = false;     ///< ranks keep their own sums, since momenta meet in their place
  bool error_feedback = false;    ///< of what these blocks take from terms of gradients (LoCo)
  const Fp8Shape* fp8 = nullptr;  ///< of products in fp8, whose weights stage 3 gathers as codes where a whole matrix has a scale
};

/// The ranks that a unit concerns, as a rank sees them.
struct UnitGroups {
  Group owners;         ///< ranks that share the unit's state
  Group replicas = {};  ///< ranks that have the same part of it in other groups of owners
  /// Where fewer ranks than the owners share a compute copy: these, and the ranks with the same part of it.
  std::optional<Group> copies = {}, sources = {};
};
UnitGroups groups_of_unit(const Mesh& mesh, Axes owners, int world_rank);

/// An exchange in which each of a group sends a part of its terms to each other, and adds the parts that come to the one that is its own.
struct GradientHop {
  Group among;
  Wire wire;
  std::int64_t elements;  ///< of a rank's terms
};
/// Those of a gradient whose terms travel in blocks: inside the groups that gather a compute copy, where there are some, and then between
/// them, where fewer bytes pass.
std::vector<GradientHop> gradient_hops(const UnitPlan& plan, std::int64_t elements);

UnitPlan plan_unit(const Layout& layout, int unit, const UnitRules& rules, const UnitGroups& groups);

}  // namespace tessera
