#include "topology/mesh.hpp"

#include <fmt/format.h>

#include "base/check.hpp"

namespace tessera {

std::string_view name_of(Axis axis) {
  constexpr std::array<std::string_view, axis_count> names = {"pp", "replicate", "dp", "cp", "ep", "tp"};
  return names[static_cast<std::size_t>(axis)];
}

int Mesh::ranks() const {
  int product = 1;
  for (int extent : extents) product *= extent;
  return product;
}

Mesh make_mesh(const MeshKeys& keys, int ranks, std::int64_t copy_ranks) {
  std::int64_t others = keys.pp * keys.cp * keys.ep * keys.tp;
  if (keys.pp < 1 || keys.cp < 1 || keys.ep < 1 || keys.tp < 1 || keys.dp < 0)
    fail(ExitCode::usage, "the mesh pp {} x dp {} x cp {} x ep {} x tp {} has an axis below 1", keys.pp, keys.dp, keys.cp, keys.ep,
         keys.tp);
  if (ranks % others != 0)
    fail(ExitCode::usage, "{} ranks do not divide by mesh.pp x cp x ep x tp = {}: start {} or {} ranks", ranks, others,
         std::max<std::int64_t>(1, ranks / others) * others, (ranks / others + 1) * others);
  std::int64_t dp = keys.dp == 0 ? ranks / others : keys.dp;
  if (dp * others != ranks)
    fail(ExitCode::usage,
         "mesh.dp = {} with {} ranks along the other axes needs {} ranks, but there are {}: set mesh.dp = {} or start {} ranks", dp, others,
         dp * others, ranks, ranks / others, dp * others);
  if (keys.replicate < 1 || dp % keys.replicate != 0)
    fail(ExitCode::usage, "mesh.replicate = {} does not divide the {} data-parallel ranks", keys.replicate, dp);
  // Of a group with the compute copy, the ranks along dp.
  const std::int64_t inside = copy_ranks / (keys.cp * keys.ep);
  const bool shares_state = copy_ranks > 1 && inside < dp;
  if (shares_state && (inside < 1 || dp % inside != 0 || copy_ranks % (keys.cp * keys.ep) != 0 || keys.replicate != 1))
    fail(ExitCode::usage, "zero.hpz_partition_size = {} does not divide the {} ranks that share parameters", copy_ranks,
         dp * keys.cp * keys.ep);
  const std::int64_t replicate = shares_state ? dp / inside : keys.replicate;
  return {{static_cast<int>(keys.pp), static_cast<int>(replicate), static_cast<int>(dp / replicate), static_cast<int>(keys.cp),
           static_cast<int>(keys.ep), static_cast<int>(keys.tp)},
          shares_state};
}

std::string describe(const Mesh& mesh) {
  std::string text;
  for (Axis axis : all_axes)
    if (axis != Axis::replicate || mesh.size(axis) > 1)
      text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name_of(axis), mesh.size(axis));
  if (mesh.shares_state) text += ", replicas of compute copies alone";
  return text;
}

Coordinates coordinates_of(const Mesh& mesh, int rank) {
  TESSERA_REQUIRE(rank >= 0 && rank < mesh.ranks(), "rank {} in a mesh of {}", rank, mesh.ranks());
  Coordinates at{};
  for (std::size_t axis = axis_count; axis-- > 0; rank /= mesh.extents[axis]) at[axis] = rank % mesh.extents[axis];
  return at;
}

int rank_of(const Mesh& mesh, const Coordinates& coordinates) {
  int rank = 0;
  for (std::size_t axis = 0; axis < axis_count; ++axis) {
    TESSERA_REQUIRE(coordinates[axis] >= 0 && coordinates[axis] < mesh.extents[axis], "coordinate {} on axis {} of {}", coordinates[axis],
                    name_of(all_axes[axis]), mesh.extents[axis]);
    rank = rank * mesh.extents[axis] + coordinates[axis];
  }
  return rank;
}

std::string describe(Axes set) {
  std::string text;
  for (Axis axis : all_axes)
    if (contains(set, axis)) text += fmt::format("{}{}", text.empty() ? "" : " x ", name_of(axis));
  if (set & pipeline_ends) text += fmt::format("{}ends of pp", text.empty() ? "" : " x ");
  return text;
}

namespace {
Axes with(Axes set, const Mesh& mesh, Axis axis) { return mesh.size(axis) == 1 ? set : static_cast<Axes>(set | axes({axis})); }
}  // namespace

Axes batch_axes(const Mesh& mesh) { return with(with(data_axes, mesh, Axis::ep), mesh, Axis::replicate); }
int batch_ranks(const Mesh& mesh) { return mesh.size(Axis::replicate) * mesh.size(Axis::dp) * mesh.size(Axis::ep); }
Axes alike_axes(const Mesh& mesh) {
  const Axes alike = with(data_axes, mesh, Axis::cp);
  return mesh.shares_state ? with(alike, mesh, Axis::replicate) : alike;
}
Axes owner_axes(const Mesh& mesh) { return with(alike_axes(mesh), mesh, Axis::ep); }
Axes expert_owner_axes(const Mesh& mesh) { return with(alike_axes(mesh), mesh, Axis::tp); }

Group group_of(const Mesh& mesh, Axes along, int world_rank) {
  Group group{.axes = along, .rank = 0, .size = 1, .world = {}};
  Coordinates first = coordinates_of(mesh, world_rank);
  const bool ends = (along & pipeline_ends) && mesh.size(Axis::pp) > 1;
  const int last = mesh.size(Axis::pp) - 1;
  TESSERA_REQUIRE(!ends || first[0] == 0 || first[0] == last, "rank {} is at no end of pp", world_rank);
  Mesh inside;  // the group as a mesh of its own, but for replicas that share state
  const int replicas = mesh.shares_state && contains(along, Axis::replicate) ? mesh.size(Axis::replicate) : 1;
  for (Axis axis : all_axes)
    if (contains(along, axis)) {
      if (axis != Axis::replicate || replicas == 1) inside.extents[static_cast<std::size_t>(axis)] = mesh.size(axis);
      first[static_cast<std::size_t>(axis)] = 0;
    }
  if (ends) inside.extents[0] = 2, first[0] = 0;
  group.size = inside.ranks() * replicas;
  for (int member = 0; member < group.size; ++member) {
    Coordinates at = coordinates_of(inside, member / replicas);
    at[static_cast<std::size_t>(Axis::replicate)] += member % replicas;
    if (ends) at[0] *= last;
    for (std::size_t axis = 0; axis < axis_count; ++axis) at[axis] += first[axis];
    group.world.push_back(rank_of(mesh, at));
    if (group.world.back() == world_rank) group.rank = member;
  }
  return group;
}

Group batch_group(Mesh mesh, int world_rank) {
  mesh.shares_state = false;
  return group_of(mesh, batch_axes(mesh), world_rank);
}

}  // namespace tessera
