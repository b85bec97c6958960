// Keys of the deck: kernels, memory, disks.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> machine_keys() {
  return {
      // [kernels]
      {KEY(kernels.loss_chunk), .type = integer, .unit = "tokens", .limits = {.least = 0, .most = max_dim}, .fallback = "\"auto\"",
       .automatic = Auto::kept,
       .help = "Tokens whose gradients of logits are held at one time; auto picks some hundreds on a host, of about 128 MiB, or some "
               "thousands on a GPU. A host makes logits themselves of fewer at a time, which its caches hold."},
      {KEY(kernels.pack_weights), .type = boolean, .fallback = "false",
       .help = "Keep weight matrices also in the layouts that the host's matrix product reads fastest, packed once a step for all "
               "micro-batches. "
               "Costs two more copies of them; only weights that a rank keeps whole (stages 0 to 2), not in reproducible mode."},
      {KEY(kernels.gemm_search), .type = boolean, .fallback = "true",
       .help =
           "On a GPU, times cuBLASLt's algorithms for each matrix product at the start and keeps the fastest in a file of the user's cache "
           "folder, for this kind of GPU; false takes cuBLASLt's first choice, and so does reproducible mode."},
      {KEY(kernels.cuda_graph), .type = text, .fallback = "\"auto\"", .automatic = Auto::kept,
       .help = "On a GPU, makes a CUDA graph of the step (of a token in generate) when it runs for the second time, and launches that from "
               "then "
               "on; auto does so for steps of up to 20000 tasks, and goes on without where CUDA refuses."},

      {KEY(kernels.attention), .type = text, .fallback = "\"auto\"", .automatic = Auto::kept,
       .help =
           "On a GPU, whose attention runs: ours, or cuDNN's (bf16 or fp16, head dims that are multiples of 8), which plans more "
           "workspace. "
           "auto "
           "times both at the start, forward and backward apart, says which it took, and keeps that with gemm_search's choices; it is ours "
           "in fp32, where there is no cuDNN and in reproducible mode, where cuDNN's workspace grows with the square of the sequence."},

      // [memory]
      {KEY(memory.device), .type = bytes, .unit = "bytes", .limits = {.least = 1}, .fallback = "\"auto\"", .automatic = Auto::kept,
       .help =
           "Memory that a rank computes in, for example \"80 GB\", for `tessera plan` and the run: that of its GPU, of which a reserve is "
           "kept "
           "for CUDA, NCCL and libraries; with run.device = \"host\" a limit of its host memory, beside memory.host. auto is what a run "
           "finds "
           "free; a plan for a GPU then knows no limit."},
      {KEY(memory.host), .type = bytes, .unit = "bytes", .limits = {.least = 1}, .fallback = "\"auto\"", .automatic = Auto::kept,
       .help = "Host memory that a rank may plan for, for example \"8 GiB\"; auto is what the node has, shared by its ranks."},
      {KEY(memory.pinned), .type = bytes, .unit = "bytes", .limits = {.least = 1}, .fallback = "\"auto\"", .automatic = Auto::kept,
       .help = "On a GPU: how much of its host memory a rank may pin, for copies beside other work; auto is no limit but memory.host. What "
               "offloading pins is pageable with pin_memory = false."},

      // [nvme]
      {KEY(nvme.block_size), .type = integer, .unit = "bytes", .limits = {.least = 4096, .most = 1 << 30}, .fallback = "1048576",
       .help = "Of a request to a disk and of a checksum, rounded up to a multiple of 4096; what lies there begins on one."},
      {KEY(nvme.queue_depth), .type = integer, .unit = "requests", .limits = {.least = 1, .most = 1024}, .fallback = "8",
       .help = "Requests that a rank's disks have at a time."},
      {KEY(nvme.threads), .type = integer, .unit = "threads a rank", .limits = {.least = 1, .most = 64}, .fallback = "1",
       .help = "That verify, and encrypt, what moves; where the system forbids io_uring there are queue_depth of them."},
      {KEY(nvme.encrypt), .type = boolean, .fallback = "false",
       .help = "Encrypts what lies on disks (AES-256-XTS) under a key that only the process knows."},
      {KEY(nvme.wipe), .type = boolean, .fallback = "false",
       .help = "Overwrites what lay on disks at the end of a run; after a kill, only encrypt hides it."}};
}

}  // namespace tessera::schema
