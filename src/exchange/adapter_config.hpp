// What PEFT's adapter_config.json says of an adapter.
#pragma once
#include "deck/deck.hpp"

namespace tessera {

/// What of a model decides how an adapter's keys are read.
struct AdaptedModel {
  bool turned = false;      ///< matrices of its files are (in, out)
  bool tied_whole = false;  ///< its embedding, which is its head too, is trained whole
};

/// What it leaves out without harm is named in the log. Reads adapter_config.json in `lora.init`. Throws Error(usage) that lists every key
/// which says another adapter than `lora`, or one that this version does not have; Error(data) for a file that cannot be read.
void require_same_adapter(const LoraKeys& lora, const AdaptedModel& model = {});

}  // namespace tessera
