// Attention by its definition.
#pragma once
#include "validation/kernels/attention_cases.hpp"

namespace tessera::kernels::testing {

/// In doubles, straight from the definition. d_out may be empty, and so may document starts; a window, a scale and a cap are the shape's.
/// Sinks (H), where there are some, are columns of scores whose values are 0.
inline AttentionValues attention_reference(const AttentionShape& s, const std::vector<double>& qkv, const std::vector<double>& d_out,
                                           const std::vector<std::int32_t>& starts = {}, const std::vector<double>& sinks = {}) {
  const auto z = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  const std::int64_t stride = s.qkv_width(), Dv = s.value_dim();
  AttentionValues r{std::vector<double>(z(s.B * s.T * s.out_width())), std::vector<double>(z(s.B * s.H * s.T)),
                    std::vector<double>(qkv.size()), std::vector<double>(sinks.size()), std::vector<double>(sinks.size())};
  for (std::int64_t b = 0; b < s.B; ++b)
    for (std::int64_t h = 0; h < s.H; ++h)
      for (std::int64_t t = 0; t < s.T; ++t) {
        auto at = [&](std::int64_t token, std::int64_t head) { return z((b * s.T + token) * stride + head * s.D); };
        auto value_at = [&](std::int64_t token, std::int64_t head) { return at(token, s.H + s.G) + z(head * Dv); };
        std::int64_t g = h / (s.H / s.G), first = 0;
        if (!starts.empty()) first = first_key_within(s, t, t - starts[z(b * s.T + t)]);
        if (s.window > 0) first = std::max(first, first_key_within(s, t, s.window - 1));
        std::size_t q = at(t, h), o = z(((b * s.T + t) * s.H + h) * Dv);
        std::vector<double> p(z(t + 1)), d_p(z(t + 1)), slope(z(t + 1));
        const double sink = sinks.empty() ? -INFINITY : sinks[z(h)];
        double most = sink, total = 0, delta = 0;
        for (std::int64_t u = first; u <= t; ++u) {
          for (std::int64_t d = 0; d < s.D; ++d) p[z(u)] += qkv[q + z(d)] * qkv[at(u, s.H + g) + z(d)];
          const AttentionScore score(s, p[z(u)]);
          p[z(u)] = score.value, slope[z(u)] = score.slope;
          most = std::max(most, p[z(u)]);
        }
        for (std::int64_t u = first; u <= t; ++u) total += p[z(u)] = std::exp(p[z(u)] - most);
        const double sink_weight = std::exp(sink - most);
        total += sink_weight;
        for (double& x : p) x /= total;
        r.lse[z((b * s.H + h) * s.T + t)] = most + std::log(total);
        for (std::int64_t u = 0; u <= t; ++u)
          for (std::int64_t d = 0; d < Dv; ++d) r.out[o + z(d)] += p[z(u)] * qkv[value_at(u, g) + z(d)];
        if (d_out.empty()) continue;
        for (std::int64_t u = 0; u <= t; ++u) {
          for (std::int64_t d = 0; d < Dv; ++d) d_p[z(u)] += d_out[o + z(d)] * qkv[value_at(u, g) + z(d)];
          delta += p[z(u)] * d_p[z(u)];
        }
        if (!sinks.empty()) {
          r.d_sinks[z(h)] -= sink_weight / total * delta;
          r.sink_terms[z(h)] += sink_weight / total * std::abs(delta);
        }
        for (std::int64_t u = 0; u <= t; ++u) {
          double d_score = p[z(u)] * (d_p[z(u)] - delta) * slope[z(u)];
          std::size_t k = at(u, s.H + g), v = value_at(u, g);
          for (std::int64_t d = 0; d < s.D; ++d) {
            r.d_qkv[q + z(d)] += d_score * qkv[k + z(d)];
            r.d_qkv[k + z(d)] += d_score * qkv[q + z(d)];
          }
          for (std::int64_t d = 0; d < Dv; ++d) r.d_qkv[v + z(d)] += p[z(u)] * d_out[o + z(d)];
        }
      }
  return r;
}

}  // namespace tessera::kernels::testing
