// AdamW in 8 bits: what its kernels must do, by the definition: state is decoded, updated as AdamW does, and encoded.
#pragma once
#include "kernels/adam8bit/adam8bit.hpp"
#include "kernels/update/eight_bits.hpp"
#include "update_cases.hpp"

namespace tessera::kernels::testing {

/// Whole blocks, a part of one, one and a part, many for threads and warps to share.
inline constexpr std::int64_t block_counts[] = {256, 77, 300, 4096, 9001};

struct BlockState {
  std::vector<float> master;
  std::vector<std::uint8_t> first, second;
  std::vector<bf16> param;
  explicit BlockState(std::int64_t n)
      : master(random_values<float>(n, 1)),
        first(static_cast<std::size_t>(state_bytes(StateType::signed_blocks, n))),
        second(static_cast<std::size_t>(state_bytes(StateType::unsigned_blocks, n))),
        param(poisoned<bf16>(n)) {}
  Hash128 hash() const { return digest(master, first, second, param); }
  Update call(bool copy) {
    return {.master = master.data(), .state = {first.data(), second.data()}, .param = copy ? param.data() : nullptr};
  }
};

/// A step by the definition.
inline void step_in_blocks(BlockState& to, const Update& like) {
  const auto n = std::ssize(to.master);
  std::vector<float> m(to.master.size()), v(to.master.size());
  decode_state(StateType::signed_blocks, m.data(), to.first.data(), n);
  decode_state(StateType::unsigned_blocks, v.data(), to.second.data(), n);
  Update p = like;
  p.master = to.master.data(), p.state[0] = m.data(), p.state[1] = v.data(), p.param = like.param ? to.param.data() : nullptr;
  host::adamw({}, p);
  if (p.scalars->skip) return;
  encode_state(StateType::signed_blocks, to.first.data(), m.data(), n);
  encode_state(StateType::unsigned_blocks, to.second.data(), v.data(), n);
}

}  // namespace tessera::kernels::testing
