// The rank mesh: every rank has a coordinate on each of five axes. Pure functions of rank numbers, no MPI.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deck/deck.hpp"

namespace tessera {

/// Pipeline, data, context, expert and tensor parallel. Outermost first: tensor-parallel neighbours have consecutive ranks, so that the
/// axis that talks most stays inside a node.
enum class Axis : std::uint8_t { pp, dp, cp, ep, tp };
inline constexpr int axis_count = 5;
inline constexpr std::array<Axis, axis_count> all_axes = {Axis::pp, Axis::dp, Axis::cp, Axis::ep, Axis::tp};
std::string_view name_of(Axis);

using Coordinates = std::array<int, axis_count>;  ///< indexed by Axis

struct Mesh {
  Coordinates extents = {1, 1, 1, 1, 1};
  int size(Axis axis) const { return extents[static_cast<std::size_t>(axis)]; }
  int ranks() const;
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

/// The deck's mesh over `ranks` ranks; dp 0 takes what the other axes leave. Throws Error(usage) when they do not divide or do not multiply
/// to `ranks`, with the values that would.
Mesh make_mesh(const MeshKeys& keys, int ranks);
/// "pp 1 x dp 4 x cp 1 x ep 1 x tp 1"
std::string describe(const Mesh& mesh);

Coordinates coordinates_of(const Mesh& mesh, int rank);
int rank_of(const Mesh& mesh, const Coordinates& coordinates);

/// The ranks that differ from `rank` along one axis only, in order of their coordinate.
struct AxisGroup {
  int colour = 0;          ///< the same for all members, different for other groups of the axis: 0 .. ranks / size - 1
  int key = 0;             ///< this rank's index in `ranks`
  std::vector<int> ranks;  ///< world ranks
};
AxisGroup axis_group(const Mesh& mesh, Axis axis, int rank);

}  // namespace tessera
