// Dropout (Srivastava et al., JMLR 2014): elements become zero by chance, and the others are scaled so that the mean stays. The chance is
// drawn from a counter (Philox4x32-10), so that the same element of a run has the same one on any layout, in any micro-batch, and when it
// is computed again.
#pragma once
#include "kernels/context.hpp"
#include "kernels/elementwise/philox.hpp"

namespace tessera::kernels {

/// y = x times 0 or 1 / (1 - rate), in fp32 and rounded once; with `accumulate` y += that. The backward pass is the same op on gradients.
struct Dropout {
  void* y = nullptr;                     ///< (M,N)
  const void* x = nullptr;               ///< (M,N); may be y
  const std::int64_t* tokens = nullptr;  ///< (M): a number of its own for each token of the run; below 0 nothing is dropped
  std::int64_t M = 0, N = 0;
  std::int64_t first = 0;    ///< the first of N features, where others have those before
  std::uint32_t stream = 0;  ///< of the tensor: another number draws other elements
  std::uint64_t seed = 0;
  double rate = 0;  ///< share that becomes zero: at least 0, below 1
  bool accumulate = false;
  DType dtype = DType::f32;  ///< f32, bf16 or f16
};
TESSERA_OP(dropout, (const Context& context, const Dropout& arguments), (context, arguments))

/// What both backends draw by.
struct DropoutDraw {
  std::uint32_t key0, key1, below;  ///< a word below this drops its element
  float scale;

  explicit DropoutDraw(const Dropout& p)
      : key0(static_cast<std::uint32_t>(p.seed)),
        // Another key than weights and data are drawn with.
        key1(static_cast<std::uint32_t>(p.seed >> 32) ^ 0xa54ff53au),
        below(static_cast<std::uint32_t>(p.rate * 0x1p32)),
        scale(static_cast<float>(1 / (1 - p.rate))) {}
  /// Words of the features from 4 `group` on.
  template <class Word>
  TESSERA_BOTH TESSERA_INLINE void words(Word (&counter)[4], const Word& group, std::uint32_t stream, std::int64_t token) const {
    counter[0] = group, counter[1] = Word(stream);
    counter[2] = Word(static_cast<std::uint32_t>(token)), counter[3] = Word(static_cast<std::uint32_t>(token >> 32));
    philox4x32(counter, key0, key1);
  }
};

}  // namespace tessera::kernels
