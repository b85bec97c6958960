// Inference with a key/value cache, for `tessera generate`: the prompt in one pass, then token by token, on the host or on a GPU.
//
// Memory bounds a token: it reads each weight of the layers and the head once, and its cache once. On a GPU no token is made in less than
//     (bytes of those weights + 2 L G D length bytes of an element) / bandwidth:
// 0.63 ms for 1.5 G parameters in bf16 at 4.8 TB/s, and 0.05 ms for 8192 tokens in the cache where L = 28, G = 2 and D = 128.
// What stands in its way, and what is done about it:
//  - 10 L + 5 calls of kernels and libraries, which the host gives more slowly than the GPU works them off: from the second token on they
//    are one CUDA graph. Nothing in it may differ between tokens, so id and position lie in memory.
//  - The kernels of a graph wait for each other, and a product of ten megabytes is two microseconds: the gap between two kernels, in which
//    the memory is idle, counts as much. Hence few kernels, with as much of their operands on the way at once as fits. Not yet measured.
//  - What crosses to the host, which must see a token before the next one begins: its id, or where tokens are drawn all logits.
#pragma once
#include <span>
#include <vector>

#include "train/device.hpp"
#include "train/engine/engine.hpp"

namespace tessera {

/// What a Decoder has room for, in tokens.
struct DecoderSize {
  std::int64_t prompt = 1;    ///< that start() takes in one pass
  std::int64_t capacity = 1;  ///< the longest text, prompt and continuation
};

class Decoder {
 public:
  /// `engine` holds the weights (training = false) where the deck's run.device has its kernels. Allocates once, bytes(deck, size).
  Decoder(const Engine& engine, const Deck& deck, const DecoderSize& size);
  /// Bytes of each tier that a Decoder takes. Kernels must have been started (KernelRuntime): workspace depends on their threads.
  static TierBytes bytes(const Deck& deck, const DecoderSize& size);

  /// Takes the first tokens, size.prompt of them. Returns before the device is done.
  void start(std::span<const std::int32_t> tokens);
  /// The same for one token more.
  void next(std::int32_t token);
  /// Logits (V, fp32) of the token that follows; valid until the next pass.
  std::span<const float> logits();
  /// The id of the largest of them, the first of equals: on a GPU nothing else crosses. Fails where they are no numbers.
  std::int32_t likeliest();
  std::int64_t length() const { return length_; }

 private:
  class Places;
  /// What host and device exchange. R rows are the tokens of a pass.
  struct Crossing {
    std::int32_t* inputs = nullptr;     ///< (2, R): ids, positions
    float* logits = nullptr;            ///< (V)
    std::int32_t* likeliest = nullptr;  ///< (1)
  };
  /// Where a pass over `size.prompt` tokens and the caches of all layers lie.
  struct Buffers : Crossing {
    float* rope = nullptr;                           ///< (capacity, D/2, 2)
    std::byte* keys = nullptr;                       ///< (L) caches of (capacity, G*D), cache_bytes apart
    std::byte* values = nullptr;                     ///< the same
    float* rotations = nullptr;                      ///< (R, D/2, 2): the positions' rows of rope
    std::byte *stream = nullptr, *normed = nullptr;  ///< (R, C)
    std::byte* qkv = nullptr;                        ///< (R, (H+2G)*D)
    std::byte* context = nullptr;                    ///< (R, H*D)
    std::byte* gate_up = nullptr;                    ///< (R, 2F)
    std::byte* activated = nullptr;                  ///< (R, F)
    float* lse = nullptr;                            ///< (H, R)
    std::span<std::byte> workspace;
    std::int64_t cache_bytes = 0, bytes = 0;
  };
  struct LayerWeights {
    const void *norm, *wqkv, *bias, *q_norm, *k_norm, *wo, *mlp_norm, *gate_up, *down;
  };

  static ModelShape shape_of(const Deck& deck);
  static Crossing crossing(Places& places, const ModelShape& shape, const DecoderSize& size);
  static Buffers lay_out(const ModelShape& shape, const DecoderSize& size, std::uintptr_t base);
  static std::size_t workspace_bytes(const ModelShape& shape, const DecoderSize& size);
  void fill_rope_table(const ModelKeys& model);
  void pass(std::span<const std::int32_t> tokens);
  /// Gives the stream a pass over `rows` tokens. All that differs between two tokens lies in memory (the inputs), and no address does: the
  /// buffers of stream and norm change places an even number of times. So a CUDA graph of it serves every token.
  void issue(std::int64_t rows);
  void attention(const LayerWeights& weights, std::int64_t layer, std::int64_t rows);
  void mlp(const LayerWeights& weights, std::int64_t rows);
  void norm(void* out, const void* x, const void* weight, std::int64_t rows);
  /// The stream becomes stream + product, in the buffer of the norm, which is no longer needed; product.c is not looked at.
  void add_product(kernels::Gemm product);

  ModelShape shape_;  // of one token: B = T = 1
  DecoderSize size_;
  std::int64_t length_ = 0;
  Arena arena_, pinned_;
  Buffers at_;
  Crossing host_;  // the host's side, where it is another
  std::vector<LayerWeights> layers_;
  const void *embedding_, *head_norm_, *head_;
  DeviceStream stream_;
  kernels::Context context_;
};

}  // namespace tessera
