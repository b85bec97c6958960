// The rank mesh: every rank has a coordinate on each of six axes. Pure functions of rank numbers, no MPI.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "deck/deck.hpp"

namespace tessera {

/// Pipeline, replicas of data-parallel ranks that share state, data, context, expert and tensor parallel. Outermost first: tensor-parallel
/// neighbours have consecutive ranks, so that the axis that talks most stays inside a node. mesh.dp of a deck is replicate x dp.
enum class Axis : std::uint8_t { pp, replicate, dp, cp, ep, tp };
inline constexpr int axis_count = 6;
inline constexpr std::array<Axis, axis_count> all_axes = {Axis::pp, Axis::replicate, Axis::dp, Axis::cp, Axis::ep, Axis::tp};
std::string_view name_of(Axis);

using Coordinates = std::array<int, axis_count>;  ///< indexed by Axis

struct Mesh {
  Coordinates extents = {1, 1, 1, 1, 1, 1};
  bool shares_state = false;  ///< replicas have compute copies of their own, and one state between them (ZeRO++ hpZ, arXiv:2306.10209)
  int size(Axis axis) const { return extents[static_cast<std::size_t>(axis)]; }
  int ranks() const;
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

/// The deck's mesh over `ranks` ranks; dp 0 takes what the other axes leave, and compute copies are shared by groups of `copy_ranks`, where
/// that is more than 1. Throws Error(usage) when they do not divide or do not multiply to `ranks`, with the values that would.
Mesh make_mesh(const MeshKeys& keys, int ranks, std::int64_t copy_ranks = 1);
inline Mesh make_mesh(const Deck& deck, int ranks) { return make_mesh(deck.mesh, ranks, deck.zero.hpz_partition_size); }
/// "pp 1 x dp 4 x cp 1 x ep 1 x tp 1"; replicas where there are several
std::string describe(const Mesh& mesh);

Coordinates coordinates_of(const Mesh& mesh, int rank);
int rank_of(const Mesh& mesh, const Coordinates& coordinates);

/// A set of axes.
using Axes = std::uint8_t;
constexpr Axes axes(std::initializer_list<Axis> members) {
  Axes set = 0;
  for (const Axis axis : members) set |= static_cast<Axes>(1u << static_cast<unsigned>(axis));
  return set;
}
/// Of the axis pp its first and its last member alone: who shares what the model uses at both ends. Other members have no such group.
inline constexpr Axes pipeline_ends = 1 << axis_count;
inline constexpr int axes_sets = 2 << axis_count;
constexpr bool contains(Axes set, Axis axis) { return (set & axes({axis})) != 0; }
/// "dp", "dp x cp"
std::string describe(Axes);

/// Data-parallel ranks that share state: copies of all that the other axes cut.
inline constexpr Axes data_axes = axes({Axis::dp});
/// Ranks that divide the batch between them: those of dp and its replicas, and where experts are cut over ranks those of ep.
Axes batch_axes(const Mesh& mesh);
int batch_ranks(const Mesh& mesh);
/// Ranks that compute with the same parameters, experts aside: their gradients are summed, and ZeRO shards over them. Those that divide the
/// batch, without replicas that have a state of their own, and where a sequence is cut over ranks those of cp.
Axes owner_axes(const Mesh& mesh);
/// Of these the ranks that keep the same boxes of all tensors.
Axes alike_axes(const Mesh& mesh);
/// Ranks that have the same experts: those that keep the same boxes, and those of tp, which does not cut experts.
Axes expert_owner_axes(const Mesh& mesh);

/// The ranks that differ from one rank along some axes only, in order of their ranks in the world.
struct Group {
  Axes axes = 0;
  int rank = 0, size = 1;        ///< this rank's index in `world`, and how many there are
  std::vector<int> world = {0};  ///< ranks of the world
};
/// Ranks in the order of their numbers; of replicas that share state those with the same compute copy are neighbours, so that the shards
/// that a copy is made of lie side by side.
Group group_of(const Mesh& mesh, Axes along, int world_rank);
/// Ranks that divide the batch, in the order of their shares: those that exchange rows of experts are always neighbours.
Group batch_group(Mesh mesh, int world_rank);

}  // namespace tessera
