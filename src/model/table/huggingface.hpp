// The tensors of a model as transformers knows it.
#pragma once
#include <string>
#include <vector>

#include "base/box.hpp"
#include "deck/deck.hpp"
#include "families/names.hpp"
#include "model/table/parameters.hpp"

namespace tessera {

/// A tensor of ours in one of theirs.
struct TensorPart {
  std::string ours;
  Shape shape;  ///< of ours
  Box box;      ///< of theirs, which may have a dim of experts before those

  /// A box of ours as theirs counts it. The elements of both have one order.
  Box of_theirs(const Box& box_of_ours) const;
};

/// A tensor of an export.
struct ExportTensor {
  std::string name;
  Shape shape;
  std::vector<TensorPart> parts;  ///< whose values follow one another in it; none: zeros
};

/// All tensors of files with such names, in the order of `table`: without adapters, and without what is not trained.
std::vector<ExportTensor> tensors_by(const TensorNames& names, const std::vector<Parameter>& table);

/// The same of the class that the deck's model belongs to. Throws Error(usage) where no class has such a model.
std::vector<ExportTensor> huggingface_tensors(const Deck& deck, const std::vector<Parameter>& table);

}  // namespace tessera
