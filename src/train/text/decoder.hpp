// Inference with a key/value cache, for `tessera generate`: the prompt in one pass, then token by token, on the host or on a GPU. Both are
// programs of the engine's schedule; what is here is how long the text has become.
//
// Memory bounds a token: it reads each weight of the layers and the head once, and its cache once. On a GPU no token is made in less than
//     (bytes of those weights + 2 L G D length bytes of an element) / bandwidth:
// 0.63 ms for 1.5 G parameters in bf16 at 4.8 TB/s, and 0.05 ms for 8192 tokens in the cache where L = 28, G = 2 and D = 128.
// What stands in its way, and what is done about it:
//  - 10 L + 5 calls of kernels and libraries, which the host gives more slowly than the GPU works them off: from the second token on they
//    are one CUDA graph, as every program that repeats. Nothing in it may differ between tokens, so id and position lie in memory.
//  - The kernels of a graph wait for each other, and a product of ten megabytes is two microseconds: the gap between two kernels, in which
//    the memory is idle, counts as much. Hence few kernels, with as much of their operands on the way at once as fits. Not yet measured.
//  - What crosses to the host, which must see a token before the next one begins: its id, or where tokens are drawn all logits.
#pragma once
#include <span>

#include "train/engine/engine.hpp"

namespace tessera {

class Decoder {
 public:
  /// Begins a text on an engine that has room for one (BuildRequest::text) and has its weights.
  explicit Decoder(Engine& engine);

  /// Takes the first tokens, as many as TextSize::prompt says.
  void start(std::span<const std::int32_t> tokens);
  /// Takes one token more.
  void next(std::int32_t token);
  /// Logits (V, fp32) of the token that follows; valid until the next pass. Not where the likeliest alone was asked for.
  std::span<const float> logits() const;
  /// Where it was asked for: the id of the largest of them, the first of equals. Fails where they are no numbers.
  std::int32_t likeliest() const;
  std::int64_t length() const { return length_; }

 private:
  Engine& engine_;
  TextSize size_;
  std::int64_t length_ = 0;
  std::span<std::int32_t> prompt_, token_;  // what a program reads: ids; id and position
  std::span<const float> logits_;
  std::span<const std::int32_t> likeliest_;
};

}  // namespace tessera
