// Token-by-token inference with a key/value cache, for `tessera generate`.
#pragma once
#include <memory>
#include <vector>

#include "train/engine.hpp"

namespace tessera {

class Decoder {
 public:
  /// `engine` holds the weights (training = false); `capacity` is the longest text, prompt and continuation.
  Decoder(const Engine& engine, const Deck& deck, std::int64_t capacity);
  /// Takes the next token and returns the logits (V, fp32) of the one that follows it.
  const std::vector<float>& next(std::int32_t token);
  std::int64_t length() const { return length_; }

 private:
  void layer(int number);
  void linear(void* y, const void* x, const std::string& weight, std::int64_t N, std::int64_t K, const std::string& bias = "");
  void norm(const std::string& tensor);  ///< of the stream
  const void* weight(const std::string& tensor) const { return engine_.weight_address(tensor); }

  const Engine& engine_;
  ModelShape shape_;  // of one token: B = T = 1
  std::int64_t capacity_, length_ = 0;
  std::vector<float> rope_, logits_;
  std::vector<std::vector<std::byte>> keys_, values_;  // by layer: (capacity, G*D)
  std::vector<std::byte> stream_, normed_, qkv_, projected_, context_, gate_up_, activated_, workspace_;
};

/// Draws a token: temperature 0 takes the largest logit; top_k 0 considers all. Depends on (seed, position) alone.
std::int32_t sample_token(const std::vector<float>& logits, double temperature, std::int64_t top_k, std::uint64_t seed,
                          std::int64_t position);

}  // namespace tessera
