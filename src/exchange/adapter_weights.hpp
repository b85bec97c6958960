// The adapter that a run begins with where lora.init names one that PEFT, or `tessera consolidate --adapter`, has written.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "base/box.hpp"
#include "deck/deck.hpp"
#include "families/names.hpp"
#include "io/safetensors/safetensors_model.hpp"
#include "model/table/parameters.hpp"

namespace tessera {

class AdapterWeights {
 public:
  /// Reads adapter_config.json and the header of adapter_model.safetensors in lora.init. Throws Error(usage) that lists every key which
  /// says another adapter than the deck's [lora], or one that this version does not have; Error(data) for files that cannot be read, and
  /// with the names of tensors that are missing, of another shape or type, or not beside this model. `names`: of the model's files;
  /// Error(usage) where a matrix that has an adapter is a part of a tensor there.
  AdapterWeights(const Deck& deck, const TensorNames& names);

  /// Elements [at, at + out.size()) of a box of the tensor, exactly as they stand in the file. Throws Error(data).
  void read(const Parameter& parameter, const Box& box, std::int64_t at, std::span<float> out) const;
  /// "adapters/chat (28 tensors, 2.30 MiB)"
  std::string describe() const;

 private:
  io::SafetensorsModel file_;
};

}  // namespace tessera
