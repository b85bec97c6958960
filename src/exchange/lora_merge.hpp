// A checkpoint's weights with its adapters in them: W + s B A, which is the model that a run with [lora] has trained.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deck/deck.hpp"
#include "io/checkpoint/checkpoint.hpp"

namespace tessera {

class LoraMerge {
 public:
  /// `reader` stays the caller's, and outlives this.
  LoraMerge(const io::CheckpointReader& reader, const LoraKeys& lora);

  /// Whether the tensor has an adapter.
  bool adapts(std::string_view tensor) const;
  /// Adds what the adapter makes of elements [begin, begin + values.size()) of the tensor, (N,K) row-major. Sums are fp32, in the order of
  /// the rank. Throws Error(checkpoint).
  void add(const std::string& tensor, std::int64_t begin, std::span<float> values);

 private:
  void load(const std::string& tensor);
  std::vector<float> read(const std::string& tensor) const;

  const io::CheckpointReader& reader_;
  float scale_ = 0;
  std::int64_t rank_ = 0;
  std::string loaded_;        ///< the tensor whose adapter these are
  std::vector<float> a_, b_;  ///< (r,K), (N,r)
};

}  // namespace tessera
