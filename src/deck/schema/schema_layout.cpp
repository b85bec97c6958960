// Keys of the deck: axes, pipelines, links.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> mesh_keys() {
  return {
      // [mesh]
      {KEY(mesh.dp), .type = integer, .unit = "ranks", .limits = {.least = 0, .most = 1e7}, .automatic = Auto::kept,
       .help = "Data-parallel ranks, which divide the batch. auto is what the other axes leave of the launch."},
      {KEY(mesh.replicate), .type = integer, .unit = "groups", .limits = {.least = 1, .most = 1e7},
       .help = "Groups of data-parallel ranks that each hold the whole state; ZeRO shards inside a group. Gathers and reductions of a "
               "micro-batch stay inside a group, for example a node. Gradients are summed over groups once a step. Divides mesh.dp; not "
               "with stage 0."},
      {KEY(mesh.tp), .type = integer, .unit = "ranks", .limits = {.least = 1, .most = 1024},
       .help = "Tensor-parallel ranks. Each has a part of every layer's heads and features and of the vocabulary, and between products a "
               "part of the tokens. Divides heads, ff_width and the tokens of a micro-batch. Divides kv_heads or is a multiple of it; "
               "ranks with the same key and value head each compute an equal part of its features. These ranks are neighbours of the "
               "launch: keep them inside a node. Experts are not cut: each rank computes its own rows of a layer with experts."},
      {KEY(mesh.pp), .type = integer, .unit = "ranks", .limits = {.least = 1, .most = 1024},
       .help = "Pipeline stages. Each has some of the layers; the first also has the embedding, the last the head. Stages send residual "
               "streams and their gradients to their neighbours. At most model.layers. This is the outermost axis: stages may be on "
               "different nodes."},
      {KEY(mesh.cp), .type = integer, .unit = "ranks", .limits = {.least = 1, .most = 1024},
       .help = "Context-parallel ranks. Each has an equal share of every sequence's tokens. Ranks of dp and cp together shard the state of "
               "the parameters. Divides batch.sequence_length; with context.method = \"ring\", 2 x mesh.cp must divide it. With "
               "\"ulysses\" it divides heads, and divides kv_heads or is a multiple of it (with mesh.tp, those of a rank). Each layer "
               "exchanges tokens for heads before and after its attention, or blocks of keys inside it: keep these ranks inside a node."},
      {KEY(mesh.ep), .type = integer, .unit = "ranks", .limits = {.least = 1, .most = 1024},
       .help = "Expert-parallel ranks. Each has an equal part of the experts of every layer, and divides the batch as ranks of dp do. "
               "Tokens' rows are sent to their experts and back. Divides model.experts. A rank plans memory for rows from each other rank: "
               "as many as its tokens could choose. With experts.capacity_factor it plans as many as experts take."}};
}

std::vector<Key> context_keys() {
  return {
      // [context]
      {KEY(context.method), .type = text,
       .help = "Method by which attention sees whole sequences if mesh.cp is above 1. ulysses: before attention, ranks exchange tokens for "
               "heads, so that each has all tokens of some heads; after it they exchange back. If there are fewer key and value heads than "
               "ranks, several ranks have the same ones. ring: each rank keeps its tokens, one chunk from the sequence's start and one "
               "from its end. Blocks of keys and values pass round the ranks while attention computes. It works with more ranks than "
               "heads. It takes as many steps as there are ranks, or with a window only those that the window reaches."}};
}

std::vector<Key> pipeline_keys() {
  return {
      // [pipeline]
      {KEY(pipeline.schedule), .type = text,
       .help = "Order of a stage's micro-batches. 1f1b alternates a forward and a backward pass; at most one micro-batch for this stage "
               "and each later one has activations there. interleaved gives each stage several runs of layers: less waiting, but that many "
               "times more transfers and some more activations. zero_bubble delays gradients of weights to times when a stage would wait: "
               "less waiting, but their inputs stay in memory longer."},
      {KEY(pipeline.virtual_stages), .type = integer, .unit = "runs of layers", .limits = {.least = 2, .most = max_dim},
       .help = "With schedule = \"interleaved\": runs of layers of each stage. mesh.pp times as many runs make up the model's layers, and "
               "run k is on stage k modulo mesh.pp."},
      {KEY(pipeline.layers), .type = integers, .unit = "layers", .limits = {.least = 1, .most = max_dim},
       .help = "Layers of each stage, or with schedule = \"interleaved\" of each run of layers, in the order of the model. Their sum is "
               "model.layers. []: chosen by FLOPs and memory, with embedding and head included."}};
}

std::vector<Key> topology_keys() {
  return {
      // [topology]
      {KEY(topology.share_gpu), .type = boolean,
       .help = "Allows several ranks of a node to share a GPU if there are fewer GPUs than ranks, for tests. Their collectives use "
               "sockets. false refuses such a launch."},
      {KEY(topology.mixed_processors), .type = boolean,
       .help = "Allows ranks to compute with different instructions, as oneDNN chooses them on nodes of different kinds. Results then "
               "depend on which rank computes what; not with run.reproducible. false refuses such a launch. The program is the same on all "
               "ranks in any case."},
      {KEY(topology.hierarchical), .type = text,
       .help = "Method by which host ranks gather and sum in a group that spans nodes, with equally many ranks on each. auto: through "
               "shared memory inside a node, and each byte once between nodes. never: all of it by MPI. The bits are the same."},
      {KEY(topology.start_timeout), .type = duration, .unit = "time", .limits = {.least = 1, .most = 31536000},
       .help = "Longest time that the ranks of a launch wait for each other at the start. Then those that have come end with status 76. "
               "The log names missing ranks after 10 s and at the end."},
      {KEY(topology.collective_timeout), .type = duration, .unit = "time", .limits = {.least = 1, .most = 31536000},
       .help = "A rank that waits longer than this for the others ends the run with a message. Set it longer than a save to the slowest "
               "disk takes."}};
}

}  // namespace tessera::schema
