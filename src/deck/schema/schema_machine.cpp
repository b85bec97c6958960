// Keys of the deck: kernels, memory, disks.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> machine_keys() {
  return {
      // [kernels]
      {KEY(kernels.loss_chunk), .type = integer, .unit = "tokens", .limits = {.least = 0, .most = max_dim}, .automatic = Auto::kept,
       .help = "Tokens whose gradients of logits are held at one time. auto is some hundreds on a host (about 128 MiB) or some thousands "
               "on a GPU. A host computes the logits themselves for fewer tokens at a time, which fit in its caches."},
      {KEY(kernels.pack_weights), .type = boolean,
       .help = "Also keeps weight matrices in the layouts that the host's matrix product reads fastest, packed once a step for all "
               "micro-batches. It costs two more copies of them. Only for weights that a rank keeps whole (stages 0 to 2), and not in "
               "reproducible mode."},
      {KEY(kernels.gemm_search), .type = boolean,
       .help = "On a GPU: the start times cuBLASLt's algorithms for each matrix product. It stores the fastest, for this kind of GPU, in a "
               "file of the user's cache folder. false, and reproducible mode, take cuBLASLt's first choice."},
      {KEY(kernels.cuda_graph), .type = text, .automatic = Auto::kept,
       .help = "On a GPU: captures the step (in generate, a token) as a CUDA graph when it runs for the second time. Later steps launch "
               "the graph. auto does so for steps of up to 20000 tasks, and continues without a graph if CUDA refuses."},

      {KEY(kernels.attention), .type = text, .automatic = Auto::kept,
       .help = "On a GPU: which attention runs, ours or cuDNN's (bf16 or fp16, head dims that are multiples of 8), which plans more "
               "workspace. auto times both at the start, forward and backward separately, logs which it took, and stores that with "
               "gemm_search's choices. auto takes ours in fp32 and without cuDNN. It also does so in reproducible mode, where cuDNN's "
               "workspace grows with the square of the sequence."},

      // [memory]
      {KEY(memory.device), .type = bytes, .unit = "bytes", .limits = {.least = 1}, .automatic = Auto::kept,
       .help = "Memory that a rank computes in, for example \"80 GB\", for `tessera plan` and the run. On a GPU a part of it is reserved "
               "for CUDA, NCCL and libraries. With run.device = \"host\" it is a limit of host memory, besides memory.host. auto is the "
               "memory that a run finds free; a plan for a GPU then has no limit."},
      {KEY(memory.host), .type = bytes, .unit = "bytes", .limits = {.least = 1}, .automatic = Auto::kept,
       .help = "Host memory that a rank may plan for, for example \"8 GiB\". auto divides the node's memory among its ranks."},
      {KEY(memory.pinned), .type = bytes, .unit = "bytes", .limits = {.least = 1}, .automatic = Auto::kept,
       .help = "On a GPU: host memory that a rank may pin, so that copies overlap with compute. auto is no limit except memory.host. With "
               "pin_memory = false offloading uses pageable memory."},

      // [nvme]
      {KEY(nvme.block_size), .type = integer, .unit = "bytes", .limits = {.least = 4096, .most = 1 << 30},
       .help = "Size of one disk request and of one checksum, rounded up to a multiple of 4096. Data on disk is aligned to it."},
      {KEY(nvme.queue_depth), .type = integer, .unit = "requests", .limits = {.least = 1, .most = 1024},
       .help = "Requests that a rank has in flight on its disks."},
      {KEY(nvme.threads), .type = integer, .unit = "threads a rank", .limits = {.least = 1, .most = 64},
       .help = "Threads that verify and encrypt what is read and written. If the system forbids io_uring, there are queue_depth of them."},
      {KEY(nvme.encrypt), .type = boolean, .help = "Encrypts the data on disks (AES-256-XTS) with a key that only the process knows."},
      {KEY(nvme.wipe), .type = boolean,
       .help = "Overwrites the data on disks at the end of a run. After a kill, only encrypt protects it."}};
}

}  // namespace tessera::schema
