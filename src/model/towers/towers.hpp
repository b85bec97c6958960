// THE table of towers that a run has beside the model that it trains. A tower is a model of its own: tensors under a prefix, segments, and
// sums of a step. Layouts, schedules, checkpoints and counts of FLOPs derive from its row.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "deck/deck.hpp"

namespace tessera {

/// A tower that trains nothing: it has forward passes alone, of each micro-batch before those of the model.
struct TowerRow {
  std::string_view name;  ///< its group of a checkpoint; with a dot behind it the prefix of its tensors, units, segments and buffers
  bool (*wanted)(const Deck&);
  /// What its tensors and texts are made of: the run's deck with another [model].
  Deck (*deck)(const Deck&);
  /// Whether it reads the model's own tensors, which then are all frozen, in the place of some of its own.
  bool (*shares_tensors)(const Deck&);
  void (*leave_out)(Deck&);  ///< of a deck

  std::string prefix() const { return std::string(name) + "."; }
};

/// A file for each: reference.cpp.
extern const TowerRow reference_tower;

std::span<const TowerRow* const> tower_rows();

/// A deck of the model alone.
Deck without_towers(Deck deck);

/// "reference: 1.2 M parameters, frozen"; empty without towers.
std::string describe_towers(const Deck& deck);

}  // namespace tessera
