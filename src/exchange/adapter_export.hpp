// The adapter of a checkpoint alone, as PEFT reads it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "deck/deck.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "model/table/parameters.hpp"

namespace tessera {

/// The text of adapter_config.json.
std::string peft_config(const Deck& deck, const std::vector<Parameter>& table);

/// Names of the files that export_adapter writes.
std::vector<std::string> adapter_files();

/// Why --adapter would be refused for a run with these adapters, or "". `kept` as below, or the folder of the model that the run begins
/// with.
std::string adapter_fault(const Deck& deck, const std::vector<Parameter>& table, const std::string& kept);

/// Error(usage) where the run has no adapters, or PEFT no names for them beside the model that it began with, whose config.json `kept` has
/// (a folder; without that file it is of the deck's class).
void require_adapter(const io::CheckpointReader& reader, const Deck& deck, const std::vector<Parameter>& table, const std::string& kept);

/// Writes adapter_config.json and adapter_model.safetensors into `folder`, which is there; bytes of values.
std::int64_t export_adapter(const io::CheckpointReader& reader, const Deck& deck, const std::vector<Parameter>& table,
                            const std::string& folder, DType dtype);

}  // namespace tessera
