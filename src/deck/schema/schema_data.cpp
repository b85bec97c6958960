// Keys of the deck: batches and what they are made of.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> data_keys() {
  return {
      // [batch]
      {KEY(batch.global), .type = integer, .unit = "sequences", .limits = {.least = 1, .most = 1e9}, .identity = true,
       .help = "Sequences of one optimizer step over all ranks; each rank runs global / (micro x ranks) micro-batches, rounded up."},
      {KEY(batch.micro), .type = integer, .unit = "sequences", .limits = {.least = 1, .most = 1e6}, .identity = true,
       .help = "Sequences that a rank passes through the model at once."},
      {KEY(batch.sequence_length), .type = integer, .unit = "tokens", .limits = {.least = 1, .most = max_dim}, .identity = true,
       .help = "Tokens of a sequence."},
      {KEY(batch.ramp), .type = phases, .fallback = "[]", .identity = true, .silent = true,
       .help =
           "Phases at the begin of a run, a table [[batch.ramp]] each, in order: `until_step` (the optimizer steps that are done as the "
           "phase ends), and the phase's `global` or `sequence_length` or both. Then global and sequence_length of [batch] hold. A phase "
           "of shorter sequences cuts each sample of batch.sequence_length tokens into equal sequences of one step (docs/ramps.md)."},

      // [data]
      {KEY(data.train), .type = paths, .unit = "path",
       .help =
           "Training tokens, relative to the current directory: .h5 as `tessera tokenize` writes it, or .bin of uint16. A list of files is "
           "a mixture by data.weights."},
      {KEY(data.weights), .type = reals, .limits = {.above = 0, .most = 1e9}, .fallback = "[]", .identity = true, .silent = true,
       .help =
           "With several files in data.train: how many of the run's sequences each gives, relative to the others, for example [0.7, 0.3]. "
           "After any number of sequences each file has given its share, but for less than one."},
      {KEY(data.epochs), .type = reals, .unit = "passes over a file", .limits = {.least = 0, .most = 1e9}, .fallback = "[]",
       .help = "Of each file in data.train: how often the run may pass over it at most, but for the last step, which is filled up; 0: as "
               "often as its weight asks for. A start at which run.steps or run.epochs asks for more is refused. How long the run is, "
               "run.epochs says."},
      {KEY(data.validation), .type = text, .unit = "path", .fallback = "\"\"",
       .help = "Validation tokens, relative to the current directory; empty: none."},
      {KEY(data.chat_template), .type = text, .unit = "name or path", .fallback = "\"\"",
       .help = "Chat template that the run keeps beside its tokenizer, for `tessera generate --chat` and exports: chatml, llama3, alpaca, "
               "plain, "
               "or a file; the one that `tessera tokenize --chat-template` was given. Empty: the model's own."},
      {KEY(data.tokenizer), .type = text, .unit = "folder or digest", .fallback = "\"\"",
       .help = "Tokenizer that the token files must be of: a folder with a tokenizer.json, which the run keeps, or the digest of one, as "
               "token files name it (`tokenizer.xxh3`). Empty: that of run.init, of the run's folder or of the checkpoint that it begins "
               "with. Checkpoints carry the digest in its place."},
      {KEY(data.bin_ids), .type = text, .fallback = "\"auto\"",
       .help = "Type of the ids in token files without a header (.bin); others say it themselves. auto is uint16, and refuses files whose "
               "bytes look like wider ids, floats or text."},
      {KEY(data.document_mask), .type = boolean, .fallback = "false", .identity = true, .silent = true,
       .help =
           "Keeps the documents of a sequence apart: attention sees a token's own document alone, positions count from its begin, and the "
           "token that a document ends with has no target. Attention then takes time by the squares of documents, not of the sequence. "
           "Token files must say where their documents begin, as `tessera tokenize` writes them."},
      {KEY(data.packing), .type = text, .fallback = "\"concatenate\"", .identity = true, .silent = true,
       .help =
           "How documents become sequences. concatenate: sequences are cut out of the file's tokens as they follow each other. documents: "
           "sequences hold whole documents, as many as fit (best fit, in an order of run.seed); what stays empty is padding that counts in "
           "no loss. It asks for data.document_mask = true."},
      {KEY(data.too_long), .type = text, .fallback = "\"refuse\"", .identity = true, .silent = true,
       .help =
           "With data.packing = \"documents\", what becomes of a document of more than batch.sequence_length + 1 tokens: refuse ends the "
           "start and names it, truncate takes its first tokens, split makes documents of its parts."}};
}

}  // namespace tessera::schema
