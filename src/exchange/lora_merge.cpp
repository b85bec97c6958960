#include "exchange/lora_merge.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "model/table/lora.hpp"

namespace tessera {

LoraMerge::LoraMerge(const io::CheckpointReader& reader, const LoraKeys& lora)
    : reader_(reader), scale_(lora.rank == 0 ? 0 : static_cast<float>(lora_scale(lora))), rank_(lora.rank) {}

bool LoraMerge::adapts(std::string_view tensor) const { return rank_ > 0 && reader_.find(lora_a(tensor)) != nullptr; }

std::vector<float> LoraMerge::read(const std::string& tensor) const {
  const io::CheckpointTensor* found = reader_.find(tensor);
  if (!found) fail(ExitCode::checkpoint, "{} has no tensor {}, which its own deck asks for", reader_.folder(), tensor);
  std::vector<float> values(static_cast<std::size_t>(found->shape.elements()));
  for (std::size_t begin = 0; begin < values.size(); begin += static_cast<std::size_t>(io::hash_block)) {
    const std::size_t n = std::min(static_cast<std::size_t>(io::hash_block), values.size() - begin);
    reader_.read("master", *found, static_cast<std::int64_t>(begin), {values.data() + begin, n});
  }
  return values;
}

void LoraMerge::load(const std::string& tensor) {
  if (loaded_ == tensor) return;
  a_ = read(lora_a(tensor)), b_ = read(lora_b(tensor));
  loaded_ = tensor;
}

void LoraMerge::add(const std::string& tensor, std::int64_t begin, std::span<float> values) {
  load(tensor);
  const std::int64_t K = std::ssize(a_) / rank_;
  std::vector<float> row(static_cast<std::size_t>(K));
  for (std::int64_t at = begin, end = begin + std::ssize(values); at < end;) {
    const std::int64_t n = at / K, from = at % K, count = std::min(K - from, end - at);
    std::fill_n(row.begin(), count, 0.0f);
    for (std::int64_t r = 0; r < rank_; ++r) {
      const float weight = b_[static_cast<std::size_t>(n * rank_ + r)];
      const float* a = a_.data() + r * K + from;
      for (std::int64_t k = 0; k < count; ++k) row[static_cast<std::size_t>(k)] += weight * a[k];
    }
    float* out = values.data() + (at - begin);
    for (std::int64_t k = 0; k < count; ++k) out[k] += scale_ * row[static_cast<std::size_t>(k)];
    at += count;
  }
}

}  // namespace tessera
