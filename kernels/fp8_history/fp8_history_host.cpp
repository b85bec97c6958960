#include "kernels/fp8_history/fp8_history.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/fp8_history/fp8_history_code.hpp"
#include "kernels/parallel.hpp"

namespace tessera::kernels::host {

void fp8_histories(const Context&, const Fp8Histories& p) {
  parallel_ranges(fp8_tensors * p.matrices, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      float* row = p.history + i * p.length;
      if (p.enters) {
        std::memmove(row + 1, row, static_cast<std::size_t>(p.length - 1) * sizeof(float));
        row[0] = p.largest[i];
      }
      p.multipliers[i] = fp8_history::multiplier_of(p, i, *std::max_element(row, row + p.length));
      p.largest[i] = 0;
    }
  });
}

}  // namespace tessera::kernels::host
