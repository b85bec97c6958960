// Keys of the deck: axes, pipelines, links.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> layout_keys() {
  return {
      // [mesh]
      {KEY(mesh.dp), .type = integer, .unit = "ranks", .limits = {.least = 0, .most = 1e7}, .fallback = "\"auto\"", .automatic = Auto::kept,
       .help = "Data-parallel ranks, which divide the batch; auto is what the other axes leave of the launch."},
      {KEY(mesh.replicate), .type = integer, .unit = "groups", .limits = {.least = 1, .most = 1e7}, .fallback = "1",
       .help = "Groups of data-parallel ranks that ZeRO shards within: each has the whole state, so that gathers and reductions of a "
               "micro-batch "
               "stay in a group, of a node for example, and gradients meet over groups once a step. Divides mesh.dp; not with stage 0."},
      {KEY(mesh.tp), .type = integer, .unit = "ranks", .limits = {.least = 1, .most = 1024}, .fallback = "1",
       .help =
           "Tensor-parallel ranks: each has a part of every layer's heads and features and of the vocabulary, and between products a part "
           "of the tokens. Divides heads, ff_width and the tokens of a micro-batch, and divides or is a multiple of kv_heads: ranks that "
           "have "
           "the same key and value head make equal parts of its features. Neighbours of the launch: keep it inside a node. Experts are not "
           "cut: each rank does its own rows of a layer with experts."},
      {KEY(mesh.pp), .type = integer, .unit = "ranks", .limits = {.least = 1, .most = 1024}, .fallback = "1",
       .help =
           "Pipeline stages: each has some of the layers, the first the embedding too and the last the head; residual streams and their "
           "gradients travel between neighbours. At most model.layers. The outermost axis: stages may be on nodes of their own."},
      {KEY(mesh.cp), .type = integer, .unit = "ranks", .limits = {.least = 1, .most = 1024}, .fallback = "1",
       .help =
           "Context-parallel ranks: each has an equal share of every sequence's tokens, and ranks of dp and cp together share the state of "
           "the parameters. Divides batch.sequence_length and, with context.method = \"ulysses\", heads, and divides or is a multiple of "
           "kv_heads (with mesh.tp, those of a rank); with \"ring\" twice mesh.cp divides batch.sequence_length. Each layer exchanges "
           "tokens "
           "for heads around its attention, or blocks of keys inside it: keep it inside a node."},
      {KEY(mesh.ep), .type = integer, .unit = "ranks", .limits = {.least = 1, .most = 1024}, .fallback = "1",
       .help =
           "Expert-parallel ranks: each has an equal part of the experts of every layer and divides the batch as ranks of dp do; rows of "
           "tokens travel to their experts and back. Divides model.experts. A rank plans for blocks of rows of each other: as many as its "
           "tokens could ask for, or with experts.capacity_factor as many as experts take."},

      // [context]
      {KEY(context.method), .type = text, .fallback = "\"ulysses\"",
       .help =
           "With mesh.cp above 1, how attention sees whole sequences. ulysses: ranks exchange tokens for heads before attention, so that "
           "each has all tokens with a part of the heads, and back after it. Of fewer key and value heads than ranks, several have the "
           "same. ring: each rank keeps its tokens, a chunk from the sequence's begin and one from its end, and blocks of keys and "
           "values go round the ranks beside the attention to them: for more ranks than heads, in as many steps as there are ranks, or "
           "with "
           "a window as many as reach what it lets queries see."},

      // [pipeline]
      {KEY(pipeline.schedule), .type = text, .fallback = "\"1f1b\"",
       .help =
           "Order in which a stage works on the micro-batches. 1f1b alternates a forward and a backward pass, so that at most as many "
           "micro-batches as there are stages after it, and its own, have activations there. interleaved gives each stage several runs of "
           "layers: less waiting for as many more transfers and some more activations. zero_bubble makes gradients of weights later than "
           "those of inputs, while a stage would wait: less waiting for what such gradients read, which stays longer."},
      {KEY(pipeline.virtual_stages), .type = integer, .unit = "runs of layers", .limits = {.least = 2, .most = max_dim}, .fallback = "2",
       .help =
           "With schedule = \"interleaved\": runs of layers of each stage. mesh.pp times as many runs make up the model's layers; run k is "
           "on stage k modulo mesh.pp."},
      {KEY(pipeline.layers), .type = integers, .unit = "layers", .limits = {.least = 1, .most = max_dim}, .fallback = "[]",
       .help = "Layers of each stage, or with schedule = \"interleaved\" of each run of layers in the order of the model, which make up "
               "model.layers; [] lets FLOPs and memory say them, with embedding and head counted."},

      // [topology]
      {KEY(topology.share_gpu), .type = boolean, .fallback = "false",
       .help = "Lets several ranks of a node share a GPU where there are fewer GPUs than ranks, for tests: their collectives go through "
               "sockets. false refuses such a launch."},
      {KEY(topology.mixed_processors), .type = boolean, .fallback = "false",
       .help =
           "Lets ranks compute with other instructions than each other (as oneDNN chooses them on nodes of several kinds), so that results "
           "depend on which rank computes what; not with run.reproducible. false refuses such a launch. The program is the same on all "
           "ranks in any case."},
      {KEY(topology.hierarchical), .type = text, .fallback = "\"auto\"",
       .help =
           "How host ranks of a group that spans nodes, as many on each, gather and sum. auto: through shared memory inside a node, and "
           "between nodes each byte once; never: all of it by MPI. Bits are the same."},
      {KEY(topology.start_timeout), .type = duration, .unit = "time", .limits = {.least = 1, .most = 31536000}, .fallback = "\"5 min\"",
       .help = "The ranks of a launch wait this long for each other; then those that have come end, with status 76. Who is missing is said "
               "after 10 s, and at the end."},
      {KEY(topology.collective_timeout), .type = duration, .unit = "time", .limits = {.least = 1, .most = 31536000},
       .fallback = "\"5 min\"",
       .help =
           "A rank that waits for the others longer than this ends the run with a message. Longer than a save of the slowest disk takes."}};
}

}  // namespace tessera::schema
