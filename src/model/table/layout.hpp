// Units: the flat ranges in which parameters are gathered, reduced, owned and saved together.
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/box.hpp"
#include "kernels/update/lines.hpp"
#include "model/table/parameters.hpp"
#include "topology/mesh.hpp"

namespace tessera {

/// Shards are cut on whole blocks of this many elements, so that sums over blocks do not depend on the number of shards.
inline constexpr std::int64_t shard_block = 256;

/// Where a tensor, or what this rank keeps of it, lies: elements [offset, offset + elements) of a unit.
struct Slot {
  int parameter = 0;  ///< row of the parameter table
  Box box;            ///< of the tensor's natural shape, row-major; its counts are the local shape
  std::int64_t offset = 0, elements = 0;
  friend bool operator==(const Slot&, const Slot&) = default;
};

struct Unit {
  std::string name;  ///< "embedding", "positions", "layers.3", "layers.3.shared", "layers.3.experts", "head", "persistent", "untrained",
                     ///< "layers.3.frozen"
  std::vector<Slot> slots;     ///< in table order; none for a tensor of which this rank keeps nothing
  std::int64_t elements = 0;   ///< padded: a multiple of shards * shard_block
  bool persistent = false;     ///< small tensors of all layers, of which every rank keeps a compute copy at stage 3
  Axes owners = data_axes;     ///< the ranks that differ along these share its state
  int shards = 1;              ///< how many they are
  bool trained = true;         ///< false: the tensors of all layers that are not, whole on each of its ranks
  std::string tower = {};      ///< Parameter::tower of its tensors
  bool frozen = false;         ///< its tensors are: it is stored as others are, and has neither gradients nor state of an optimizer
  std::string optimizer = {};  ///< Parameter::optimizer of its tensors

  /// Whether it has gradients, and an optimizer updates it.
  bool learns() const { return trained && !frozen; }
  /// Of its values where kernels read them.
  DType type(DType compute) const { return trained ? compute : DType::f32; }
};

/// A tensor, or several joined ones, inside a unit: of each what this rank keeps.
struct TensorRef {
  int unit = 0;
  std::int64_t offset = 0, elements = 0;
};

struct Layout {
  std::vector<Parameter> table;
  std::vector<Unit> units;
  int shards = 1;                                        ///< ranks that share each unit
  std::map<std::string, TensorRef, std::less<>> places;  ///< of each tensor, with those joined to it

  std::int64_t shard_elements(int unit) const {
    return units[static_cast<std::size_t>(unit)].elements / units[static_cast<std::size_t>(unit)].shards;
  }
  /// The named tensor together with those joined to it. Throws Error(internal) for an unknown name.
  TensorRef find(std::string_view tensor) const;
  /// The named tensor alone. Throws likewise.
  TensorRef find_alone(std::string_view tensor) const;
  /// The rows of the model that trains.
  std::vector<Parameter> model_table() const;
  /// Adds the tensors and units of a tower beside the model, all frozen.
  void add_tower(const std::string& tower, Layout of_tower);
};

/// Tensors begin on shard_block (joined ones right after their neighbour). Tensors of at most `persistence_threshold` elements (0: none) go
/// to the unit "persistent", joined ones together or not at all. `kept` has the box of each parameter that this rank keeps, of no elements
/// where it keeps nothing; empty: all of all. The threshold counts whole tensors, so that it divides them alike on all ranks.
/// Where axes cut tensors, those that are cut by none go to the unit "replicated", which is persistent too: each of its ranks has gradients
/// of its own for them, which meet over these axes as well. The embedding that is the head too lies at both ends of a pipeline, in a unit
/// that they share. The `shards` ranks differ along `owners`. Experts of a layer may have other owners: fewer where ranks have unlike ones,
/// more where ranks that an axis cuts have the same; they stay out of "persistent" and "replicated" whatever their size. The expert of all
/// tokens, which is as large and cut by none, is a unit of its own where there is "replicated", gathered at stage 3 as all are. What is not
/// trained goes to the unit "untrained". What is frozen goes to units of its own, "NAME.frozen" beside NAME, where it would else have gone;
/// so do tensors that another optimizer updates, to "NAME.lion".
struct Replication {
  Axes over = 0;
  int copies = 1;  ///< ranks along them
  bool embedding_at_ends = false;
  Axes expert_owners = 0;  ///< of units of experts; 0: the owners of all else
  int expert_shards = 0;   ///< ranks along them
};
Layout make_layout(std::vector<Parameter> table, int shards, std::int64_t persistence_threshold, std::vector<Box> kept = {},
                   const Replication& replication = {}, Axes owners = data_axes);

/// A run of elements inside a unit that belong to one tensor: what lies in [begin, end) of the unit.
struct Piece {
  int parameter = 0;
  int slot = 0;                  ///< of the unit
  std::int64_t unit_offset = 0;  ///< first element, in the unit
  std::int64_t slot_offset = 0;  ///< the same element, in the slot
  std::int64_t elements = 0;
};
std::vector<Piece> pieces_in(const Unit& unit, std::int64_t begin, std::int64_t end);

/// Rows and columns of whole matrices, in natural shape: of all slots of a unit before each, and of all.
struct LinesBefore {
  std::int64_t rows = 0, columns = 0;
};
std::vector<LinesBefore> lines_before(const Layout& layout, const Unit& unit);
/// All rows, or columns, of a unit.
std::int64_t lines_of(const Layout& layout, const Unit& unit, kernels::Extent extent);

/// Elements that follow each other in the unit and in the tensor's natural shape, row-major.
struct NaturalRun {
  std::int64_t unit_offset = 0;
  std::int64_t tensor_offset = 0;  ///< in the natural shape
  std::int64_t elements = 0;
};
/// A piece in such runs, in the unit's order: one where the slot is a whole tensor.
void for_each_run(const Layout& layout, const Unit& unit, const Piece& piece, const std::function<void(const NaturalRun&)>& take);

}  // namespace tessera
