// The tensors of a model as transformers knows it.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "base/box.hpp"
#include "deck/deck.hpp"
#include "families/names.hpp"
#include "model/table/parameters.hpp"

namespace tessera {

/// A tensor of ours in one of theirs.
struct TensorPart {
  std::string ours;
  Shape shape;            ///< of ours
  Box box;                ///< of theirs, around all of ours; it may have a dim of experts before those
  bool turned = false;    ///< ours is (out, in), theirs (in, out)
  std::int64_t step = 1;  ///< ours are each step-th of its rows, or turned of its columns
  /// Of so many rows of theirs, a head's, the first, third, ... are the first half of ours and the others the second; 0: rows lie as ours.
  std::int64_t pairs_of = 0;

  /// Elements of ours have the order of theirs.
  bool in_order() const { return !turned && step == 1 && pairs_of == 0; }
  /// Of rows [row, row + rows) of ours those from `row` on that lie two apart in theirs, and a part that reads them so.
  std::pair<std::int64_t, TensorPart> deinterleaved(std::int64_t row, std::int64_t rows) const;
  /// The box of theirs around a box of ours.
  Box of_theirs(const Box& box_of_ours) const;
};

/// A tensor of an export.
struct ExportTensor {
  std::string name;
  Shape shape;
  std::vector<TensorPart> parts;  ///< whose values follow one another in it; none: all are `value`
  float value = 0;
  bool fp32 = false;  ///< whatever the type of the others
};

/// All tensors of files with such names, in the order of `table`: without adapters, and without what is not
/// trained where files have no name for it.
std::vector<ExportTensor> tensors_by(const TensorNames& names, const std::vector<Parameter>& table);

/// The same of the class that the deck's model belongs to. Throws Error(usage) where no class has such a model.
std::vector<ExportTensor> huggingface_tensors(const Deck& deck, const std::vector<Parameter>& table);

}  // namespace tessera
