// What a row's sums over the slices come to: the same lines on a host thread and on a GPU thread.
#pragma once
#include <cmath>

#include "kernels/cross_entropy/softmax_slice.hpp"

namespace tessera::kernels::softmax_slice {

struct Row {
  float loss = 0;
  double most = 0;     ///< the largest logit of the row
  float factor = 0;    ///< d_logit = e^(logit - most) * factor
  float d_target = 0;  ///< at the target (probability - 1) * grad_scale, formed before it is rounded
};

/// Slices in the order of the vocabulary, so that all ranks get the same bits.
TESSERA_BOTH inline Row row_of(const SoftmaxSliceLoss& s, std::int64_t r) {
  Row row;
  const auto weight = static_cast<double>(s.weights[r]);
  if (weight == 0) return row;
  const auto sums = [&](std::int64_t slice) { return s.sums + (slice * s.rows + r) * 3; };
  row.most = sums(0)[0];
  double target = 0, total = 0;
  for (std::int64_t k = 0; k < s.slices; ++k) {
    row.most = row.most < sums(k)[0] ? sums(k)[0] : row.most;
    target += sums(k)[2];
  }
  for (std::int64_t k = 0; k < s.slices; ++k) total += sums(k)[1] * exp(sums(k)[0] - row.most);
  const double scale = s.d_logits ? weight * static_cast<double>(*s.grad_scale) : 0;
  row.loss = static_cast<float>(weight * (log(total) + row.most - target));
  row.factor = static_cast<float>(scale / total);
  row.d_target = static_cast<float>((exp(target - row.most) / total - 1) * scale);
  return row;
}

}  // namespace tessera::kernels::softmax_slice
