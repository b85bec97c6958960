// The model that a config.json of Hugging Face says.
#pragma once
#include <string>
#include <vector>

#include "deck/deck.hpp"

namespace tessera {

struct Family;

struct ModelSource {
  ModelKeys model;
  std::int64_t context = 0;             ///< tokens that the model was made for; 0: not known
  std::string from;                     ///< for the deck's comment
  std::string architecture = {};        ///< of a config.json: "LlamaForCausalLM"
  const Family* family = nullptr;       ///< of a config.json: its files have the names of this one
  std::int64_t further_layers = 0;      ///< behind the model's, whose tensors files may have and that are left out
  bool text_part = false;               ///< of a model of more than text, in whose files the names are others (text_part.hpp)
  bool own_head = false;                ///< the weights have one, though config.json says that the embedding is the head
  std::vector<std::string> notes = {};  ///< what its reader leaves out without harm, for the log
};

/// The text of a config.json. What is wrong goes to `faults`.
ModelSource read_huggingface_config(const std::string& text, const std::string& file, std::vector<Fault>& faults);

}  // namespace tessera
