// What tensor-parallel ranks do around attention where they are more than the key heads. N / G neighbours have the same key and value head,
// and of its features each has made a part; before attention the parts meet, and after it their gradients.
#pragma once
#include "kernels/elementwise/elementwise.hpp"

namespace tessera::kernels {

/// Whose parts make up the key head of a rank. A row of attention has H D + D + Dv elements: [H query heads | key head | value head]. What
/// a rank's product has made has H D + P, P = (D + Dv) / sharing: [H query heads | part of the key head | part of the value head].
struct KeyParts {
  std::int64_t M = 0;                 ///< tokens
  std::int64_t H = 0, D = 0, Dv = 0;  ///< query heads of this rank, and features of a key and a value head; Dv 0: as D
  std::int64_t N = 0;                 ///< ranks
  std::int64_t sharing = 0;           ///< neighbours that have the same key head; divides D, Dv and N
  std::int64_t first = 0;             ///< the first of those that have this rank's
  DType dtype = DType::f32;
  std::int64_t value_dim() const { return Dv == 0 ? D : Dv; }
  std::int64_t part() const { return (D + value_dim()) / sharing; }  ///< P
};

/// mine (M,P) = the parts of keys and values in made (M, H D + P).
inline void take_key_part(const Context& context, void* mine, const void* made, const KeyParts& p) {
  const auto element = static_cast<std::int64_t>(size_of(p.dtype));
  const std::int64_t queries = p.H * p.D * element, keys = p.part() * element;
  const void* from = static_cast<const std::byte*>(made) + queries;
  copy_rows(context, {.to = mine, .to_stride = keys, .from = from, .from_stride = queries + keys, .bytes = keys, .rows = p.M});
}

/// rows (M, H D + D + Dv): queries from made (M, H D + P), keys and values from the parts (N,M,P) of all ranks.
struct JoinKeyParts {
  void* rows = nullptr;
  const void* made = nullptr;
  const void* parts = nullptr;
  KeyParts shape;
};
TESSERA_OP(join_key_parts, (const Context& context, const JoinKeyParts& arguments), (context, arguments))

/// parts (N,M,P) for the ranks: of d_rows (M, H D + D + Dv) the gradients of keys and values, and zeros for those that have another head.
/// Their sum over ranks is what each rank's part gets.
struct SpreadKeyGradients {
  void* parts = nullptr;
  const void* d_rows = nullptr;
  KeyParts shape;
};
TESSERA_OP(spread_key_gradients, (const Context& context, const SpreadKeyGradients& arguments), (context, arguments))

/// d_made (M, H D + P) = [query columns of d_rows (M, H D + D + Dv) | mine (M,P)].
inline void put_key_part(const Context& context, void* d_made, const void* d_rows, const void* mine, const KeyParts& p) {
  const auto element = static_cast<std::int64_t>(size_of(p.dtype));
  const std::int64_t queries = p.H * p.D * element, keys = p.part() * element, row = queries + (p.D + p.value_dim()) * element;
  copy_rows(context, {.to = d_made, .to_stride = queries + keys, .from = d_rows, .from_stride = row, .bytes = queries, .rows = p.M});
  void* to = static_cast<std::byte*>(d_made) + queries;
  copy_rows(context, {.to = to, .to_stride = queries + keys, .from = mine, .from_stride = keys, .bytes = keys, .rows = p.M});
}

}  // namespace tessera::kernels
