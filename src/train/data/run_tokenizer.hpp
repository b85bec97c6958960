// The tokenizer of a run: the model's small files, which lie in the run's folder beside its checkpoints (RUN/tokenizer), so that who uses a
// checkpoint needs no path.
#pragma once
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "train/data/batches.hpp"

namespace tessera {

struct RunTokenizer {
  std::string folder;  ///< with tokenizer.json; "": nobody has named one
  std::string digest;  ///< io::tokenizer_digest; "": the run has none
  std::string source;  ///< who says so, for messages
  std::string model =
      {};  ///< folder with the config.json of the model that the run begins with, which says ids of tokens; "": there is none
  std::string chat_template = {};  ///< text of the one that data.chat_template names; "": it names none
};

/// The one that data.tokenizer names, in the run's folder, in that of the checkpoint that the run begins with or in its deck, or in the
/// folder of run.init: all that there are must be the same, else Error(usage). Where none has the files, what was learnt from the run's own
/// tokens and lies beside them. `run`: "" where what stands there is moved aside; `checkpoint`: "" where there is none.
RunTokenizer find_tokenizer(const Deck& deck, const std::string& run, const std::string& checkpoint);
/// RUN/tokenizer of the run that a checkpoint belongs to, which may not be there.
std::string kept_folder(const std::string& checkpoint);
/// The same where it has a tokenizer; else "".
std::string tokenizer_folder(const std::string& checkpoint);
/// The folder of the tokenizer for texts of a checkpoint: `named`, or where that is "" the one beside its run; "" where there is none. One
/// that is not of the digest that the checkpoint carries is Error(usage).
std::string choose_tokenizer(const std::string& named, const std::string& checkpoint);
/// Refuses token files of another tokenizer, and of bytes: Error(data). A file that does not say its tokenizer passes.
void require_tokenizer(const RunTokenizer& tokenizer, const SampleFile& file);
/// Refuses two token files of a run that say to be of different tokenizers: Error(data).
void require_same_tokenizer(const SampleFile& file, const SampleFile& other);

}  // namespace tessera
