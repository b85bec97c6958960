// Random models and layouts, and one small deck: what the tests of model, zero and schedule share.
#pragma once
#include <random>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "model/table/layout.hpp"

namespace tessera::test {

/// Whole numbers in [low, high]; the same with every C++ library.
class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}
  std::int64_t operator()(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  double unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

 private:
  std::mt19937_64 engine_;
};

inline ModelKeys random_model(Random& random) {
  ModelKeys m;
  m.layers = random(1, 4), m.width = random(1, 40), m.kv_heads = random(1, 3), m.heads = m.kv_heads * random(1, 3);
  m.head_dim = 2 * random(1, 8), m.ff_width = random(1, 70), m.vocab = random(2, 90);
  m.tied = random(0, 1), m.qk_norm = random(0, 1), m.qkv_bias = random(0, 1);
  m.rope_scaling = RopeMode::none;
  return m;
}

/// 1 to 9 shards and thresholds from none to nearly all.
inline Layout random_layout(Random& random) {
  auto table = parameter_table(random_model(random));
  const int shards = static_cast<int>(random(1, 9));
  return make_layout(std::move(table), shards, random(0, 3) == 0 ? 0 : random(0, 2000));
}

inline const std::string tiny_deck_text = R"([run]
steps = 10
[model]
layers = 2
width = 32
heads = 4
kv_heads = 2
head_dim = 8
ff_width = 48
vocab = 61
init_std = 0.3
[batch]
global = 60
micro = 2
sequence_length = 12
[data]
train = "data/train.h5"
[optimizer]
learning_rate = 1e-3
[precision]
compute = "fp32"
)";

/// A deck that trains in a blink, with overrides as on the command line.
inline Deck tiny_deck(const std::vector<std::string>& overrides = {}, int ranks = 1) {
  return require_deck(parse_deck_text(tiny_deck_text, "tiny.toml", overrides, ranks));
}

}  // namespace tessera::test
