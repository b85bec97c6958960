#include "topology/mesh_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

namespace tessera {
namespace {

bool is_cut(const Mesh& mesh, Axis axis) { return mesh.size(axis) > 1; }

/// Along the axes that are cut: "dp 1, tp 3"; of a mesh of one rank nothing.
std::string describe(const Mesh& mesh, const Coordinates& first, const Coordinates& last) {
  std::string text;
  for (const Axis axis : all_axes) {
    const auto a = static_cast<std::size_t>(axis);
    if (!is_cut(mesh, axis)) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(axis), first[a]);
    if (last[a] != first[a]) text += fmt::format("-{}", last[a]);
  }
  return text;
}

/// Ranks [first, last] in a row: in as few parts as there are boxes of coordinates that they fill.
std::string describe_ranks(const Mesh& mesh, int first, int last) {
  std::string text;
  for (int begin = first; begin <= last;) {
    // The largest box that begins here: whole inner axes, and a run along the next one.
    const Coordinates from = coordinates_of(mesh, begin);
    Coordinates to = from;
    int ranks = 1;
    for (std::size_t axis = axis_count; axis-- > 0;) {
      const int room = (last - begin + 1) / ranks, run = std::min(mesh.extents[axis] - from[axis], room);
      to[axis] = from[axis] + run - 1, ranks *= run;
      if (run < mesh.extents[axis]) break;
    }
    const std::string which = ranks == 1 ? fmt::format("rank {}", begin) : fmt::format("ranks {}-{}", begin, begin + ranks - 1);
    const std::string where = describe(mesh, from, to);
    text += fmt::format("{}{}{}{}", text.empty() ? "" : "; ", which, where.empty() ? "" : ": ", where);
    begin += ranks;
  }
  return text;
}

}  // namespace

int nodes_of_groups(const Mesh& mesh, Axis axis, int ranks_per_node) {
  std::size_t most = 1;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    if (coordinates_of(mesh, rank)[static_cast<std::size_t>(axis)] != 0) continue;  // each group once
    std::set<int> nodes;
    for (const int member : group_of(mesh, axes({axis}), rank).world) nodes.insert(member / ranks_per_node);
    most = std::max(most, nodes.size());
  }
  return static_cast<int>(most);
}

std::string print_map(const Mesh& mesh, int ranks_per_node) {
  std::string text;
  const int ranks = mesh.ranks();
  for (int node = 0; node * ranks_per_node < ranks; ++node)
    fmt::format_to(std::back_inserter(text), "  node {:<5} {}\n", node,
                   describe_ranks(mesh, node * ranks_per_node, std::min(ranks, (node + 1) * ranks_per_node) - 1));
  for (const Axis axis : all_axes) {
    if (!is_cut(mesh, axis)) continue;
    const int groups = ranks / mesh.size(axis), nodes = nodes_of_groups(mesh, axis, ranks_per_node);
    fmt::format_to(std::back_inserter(text), "  {:<10} {} group{} of {} ranks, {}\n", name_of(axis), groups, groups == 1 ? "" : "s",
                   mesh.size(axis), nodes == 1 ? "each inside a node" : fmt::format("over {} nodes", nodes));
  }
  return text;
}

}  // namespace tessera
