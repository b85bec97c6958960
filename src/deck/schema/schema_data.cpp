// Keys of the deck: batches and what they are made of.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> data_keys() {
  return {
      // [batch]
      {KEY(batch.global), .type = integer, .required = true, .unit = "sequences", .limits = {.least = 1, .most = 1e9}, .identity = true,
       .help = "Sequences of one optimizer step over all ranks. Each rank runs global / (micro x ranks) micro-batches, rounded up."},
      {KEY(batch.micro), .type = integer, .required = true, .unit = "sequences", .limits = {.least = 1, .most = 1e6}, .identity = true,
       .help = "Sequences that a rank passes through the model at once."},
      {KEY(batch.sequence_length), .type = integer, .required = true, .unit = "tokens", .limits = {.least = 1, .most = max_dim},
       .identity = true, .help = "Tokens of a sequence."},
      {KEY(batch.ramp), .type = phases, .identity = true, .silent = true,
       .help = "Phases at the start of a run, in order, a table [[batch.ramp]] each. `until_step` is the number of optimizer steps "
               "done when the phase ends. Until then, `global`, `sequence_length` or both replace those of [batch]. A phase with "
               "shorter sequences cuts each sample of batch.sequence_length tokens into equal sequences of one step (docs/ramps.md)."},

      // [data]
      {KEY(data.train), .type = paths, .required = true, .unit = "path",
       .help = "Training tokens, relative to the current directory: .h5 as `tessera tokenize` writes it, or .bin of uint16. A list of "
               "files is a mixture by data.weights."},
      {KEY(data.weights), .type = reals, .limits = {.above = 0, .most = 1e9}, .identity = true, .silent = true,
       .help = "With several files in data.train: share of the run's sequences that each file gives, relative to the others, for "
               "example [0.7, 0.3]. At any time each file has given its share to within one sequence."},
      {KEY(data.epochs), .type = reals, .unit = "passes over a file", .limits = {.least = 0, .most = 1e9},
       .help = "Most passes over each file in data.train, except that the last step is filled up. 0: as many as its weight needs. A "
               "start is refused if run.steps or run.epochs needs more. This key does not set the length of the run; run.epochs does."},
      {KEY(data.validation), .type = text, .unit = "path", .help = "Validation tokens, relative to the current directory; empty: none."},
      {KEY(data.chat_template), .type = text, .unit = "name or path",
       .help = "Chat template that the run stores with its tokenizer, for `tessera generate --chat` and exports: chatml, llama3, "
               "alpaca, plain, or a file. Use the one that `tessera tokenize --chat-template` was given. Empty: the model's own."},
      {KEY(data.tokenizer), .type = text, .unit = "folder or digest",
       .help = "Tokenizer that made the token files: a folder with a tokenizer.json, which the run copies, or a digest as in token "
               "files (`tokenizer.xxh3`). Empty: the tokenizer of run.init, of the run's folder or of the checkpoint that it starts "
               "from. Checkpoints store the digest instead."},
      {KEY(data.bin_ids), .type = text,
       .help = "Type of the ids in token files without a header (.bin). Other files name their type. auto is uint16, and refuses files "
               "whose bytes look like wider ids, floats or text."},
      {KEY(data.document_mask), .type = boolean, .identity = true, .silent = true,
       .help = "Separates the documents of a sequence. Attention sees only the token's own document, and positions count from its "
               "start. A document's last token has no target. Attention then takes time by the squares of the documents' lengths, not "
               "of the sequence's. Token files must store where documents start; `tessera tokenize` does."},
      {KEY(data.packing), .type = text, .identity = true, .silent = true,
       .help = "Method that makes sequences of documents. concatenate: sequences are cut out of the file's tokens in order. documents: "
               "a sequence holds as many whole documents as fit (best fit, in an order drawn from run.seed). The rest is padding, "
               "which counts in no loss. It needs data.document_mask = true."},
      {KEY(data.too_long), .type = text, .identity = true, .silent = true,
       .help = "With data.packing = \"documents\": treatment of documents of more than batch.sequence_length + 1 tokens. refuse ends "
               "the start and names the document, truncate keeps its first tokens, split cuts it into several documents."}};
}

}  // namespace tessera::schema
