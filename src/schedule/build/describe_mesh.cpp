#include "schedule/build/describe_mesh.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace tessera {

std::string describe_context(const Deck& deck, const Mesh& mesh) {
  const std::int64_t heads = std::max<std::int64_t>(1, deck.model.kv_heads / mesh.size(Axis::tp)), ranks = mesh.size(Axis::cp);
  if (ranks > 1 && deck.context.method == ContextMethod::ring) return " (keys and values pass round in a ring)";
  return ranks <= heads ? "" : fmt::format(" ({} have the same key and value head)", ranks / heads);
}

std::string describe_tensor(const Deck& deck, const Mesh& mesh) {
  const std::int64_t heads = deck.model.kv_heads, ranks = mesh.size(Axis::tp);
  return ranks <= heads ? "" : fmt::format(" ({} make parts of the same key and value head)", ranks / heads);
}

std::string describe_replicas(const Mesh& mesh) {
  const int groups = mesh.size(Axis::replicate);
  if (groups == 1) return "";
  return fmt::format(" in {} groups with {} each", groups, mesh.shares_state ? "a compute copy" : "the whole state");
}

}  // namespace tessera
