// Decks of others' files: a DeepSpeed configuration, a model of Hugging Face.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"

namespace tessera {

/// Token files of a fine-tuning.
struct TuningData {
  std::string train, validation;                        ///< validation: "" for none
  std::int64_t tokens = 0, documents = 0, longest = 0;  ///< of train; longest: tokens of the longest document of both
  bool masked = false;                                  ///< some tokens do not count in the loss
  std::int64_t pairs = 0;                               ///< of train, which holds a chosen and a rejected document of each; 0: texts
  std::int64_t longest_pair = 0;                        ///< tokens of both documents of the longest pair of both files
};

/// What a run from a model of Hugging Face is for.
struct Tuning {
  bool chat = false;
  bool dpo = false;  ///< learn from pairs which answer is preferred
  int lora = 0;      ///< rank of adapters; 0: none
  std::optional<TuningData> data = {};
};

struct ImportRequest {
  std::string path;                    ///< of the file, for messages and the deck's first line
  std::string trainer = {};            ///< TrainingArguments of transformers as JSON; empty: none. `path` may be empty then
  std::string model;                   ///< a known name, a deck, or a config.json of Hugging Face or its folder; of DeepSpeed's alone
  std::vector<std::string> overrides;  ///< "key=value" of the deck
  int ranks = 0;                       ///< 0: not known; needed where the configuration does not give the global batch
  /// Of a model of Hugging Face whose config.json says that the embedding is the head: whether the folder's weights say otherwise.
  std::function<bool(const std::string& folder)> own_head = {};
  Tuning tuning = {};  ///< of a model of Hugging Face alone
};

struct ImportedDeck {
  std::string text;                     ///< a deck that `tessera deck check` takes; empty where there are faults
  std::vector<Fault> faults;            ///< of the configuration, of the model's file, of overrides, each with its place
  std::vector<std::string> notes = {};  ///< what was left out without harm, for the log
};

/// The deck of a configuration of DeepSpeed (request.path), of the Trainer's arguments (request.trainer), or of both: then the arguments
/// fill in what is "auto" or missing in the first, which they also may name or hold (`deepspeed`).
ImportedDeck import_configuration(const ImportRequest& request);
/// The same of a text; `request.path` or `request.trainer` stands for it in messages.
ImportedDeck import_deepspeed_text(const std::string& text, const ImportRequest& request);
ImportedDeck import_trainer_text(const std::string& text, const ImportRequest& request);

/// The deck of a run that begins from a model of Hugging Face: `path` is its folder, or its config.json; run.init names the folder where
/// weights stand in it. All but the [model] is a beginning, and marked where it must be said.
ImportedDeck import_huggingface(const ImportRequest& request);

}  // namespace tessera
