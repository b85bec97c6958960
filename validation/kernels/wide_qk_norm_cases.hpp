// Rows of query, key and other features, whose query and key features are normed over all parts that a row is cut into.
#pragma once
#include <ostream>

#include "kernels/wide_qk_norm/wide_qk_norm.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct WideQkCase {
  std::int64_t M, Q, K, stride, parts = 1;
  float offset = 0;
};
/// Rows of a part that end with the key features, or go on; lengths that are no whole vectors; one row block and several; on a GPU from
/// features on part of a warp to several tiles of a block. With one part, two and three.
inline const WideQkCase wide_qk_cases[] = {{1, 1, 1, 2},         {5, 200, 40, 280},   {77, 200, 40, 240, 2, 1.5f},
                                           {70, 64, 32, 128, 3}, {33, 47, 13, 61, 2}, {9, 2064, 1040, 3200, 2, 1.5f},
                                           {130, 1040, 16, 1072}};
inline std::ostream& operator<<(std::ostream& out, const WideQkCase& c) {
  return out << c.M << " rows, Q " << c.Q << ", K " << c.K << ", stride " << c.stride << ", parts " << c.parts << ", offset " << c.offset;
}

/// One part's operands: each part has features, weights and gradients of its own.
template <class T>
struct WideQkPart {
  std::vector<T> x, q_norm, k_norm, d;
  std::vector<float> d_q_norm, d_k_norm;  ///< what is there before
  WideQkPart(const WideQkCase& c, unsigned part)
      : x(random_values<T>(c.M * c.stride, 10 * part + 1, static_cast<float>(part + 1))),
        q_norm(random_values<T>(c.Q, 10 * part + 2)),
        k_norm(random_values<T>(c.K, 10 * part + 3)),
        d(random_values<T>(c.M * c.stride, 10 * part + 4)),
        d_q_norm(random_values<float>(c.Q, 10 * part + 5)),
        d_k_norm(random_values<float>(c.K, 10 * part + 6)) {
    // The gradient of other features is poison: read, it would spoil what is near; written, it would change.
    const auto poison = poisoned<T>(c.stride - c.Q - c.K);
    for (std::int64_t m = 0; m < c.M; ++m) std::copy(poison.begin(), poison.end(), d.begin() + m * c.stride + c.Q + c.K);
  }
};
template <class T>
struct WideQkInputs {
  WideQkCase c;
  std::vector<WideQkPart<T>> parts;
  explicit WideQkInputs(const WideQkCase& c) : c(c) {
    for (std::int64_t i = 0; i < c.parts; ++i) parts.emplace_back(c, static_cast<unsigned>(i));
  }
  WideQkShape shape() const {
    return {.M = c.M, .Q = c.Q, .K = c.K, .stride = c.stride, .parts = c.parts, .dtype = dtype_of<T>(), .offset = c.offset};
  }
};

/// What all passes write, of all parts.
template <class T>
struct WideQkResults {
  std::vector<float> sums, dots;  ///< (parts,M,2)
  struct Part {
    std::vector<T> out, d;
    std::vector<float> d_q_norm, d_k_norm;
  };
  std::vector<Part> parts;
  Hash128 hash() const {
    std::string all = digest(sums, dots).hex();
    for (const Part& p : parts) all += digest(p.out, p.d, p.d_q_norm, p.d_k_norm).hex();
    return hash_text(all);
  }
};

/// The passes on the host, part by part.
template <class T>
WideQkResults<T> wide_qk_on_host(const WideQkInputs<T>& inputs, bool in_place = false) {
  const WideQkCase& c = inputs.c;
  const WideQkShape shape = inputs.shape();
  WideQkResults<T> r{poisoned<float>(c.parts * c.M * 2), poisoned<float>(c.parts * c.M * 2), {}};
  for (std::int64_t i = 0; i < c.parts; ++i) {
    const WideQkPart<T>& part = inputs.parts[static_cast<std::size_t>(i)];
    host::wide_qk_sums({}, {.sums = r.sums.data() + i * c.M * 2, .x = part.x.data(), .shape = shape});
    host::wide_qk_dots({}, {.dots = r.dots.data() + i * c.M * 2,
                            .d = part.d.data(),
                            .x = part.x.data(),
                            .q_norm = part.q_norm.data(),
                            .k_norm = part.k_norm.data(),
                            .shape = shape});
  }
  for (const WideQkPart<T>& part : inputs.parts) {
    typename WideQkResults<T>::Part to{in_place ? part.x : poisoned<T>(c.M * c.stride), part.d, part.d_q_norm, part.d_k_norm};
    host::wide_qk_norm({}, {.out = to.out.data(),
                            .x = in_place ? to.out.data() : part.x.data(),
                            .sums = r.sums.data(),
                            .q_norm = part.q_norm.data(),
                            .k_norm = part.k_norm.data(),
                            .shape = shape});
    const WideQkNormBackward p{.d = to.d.data(),
                               .d_q_norm = to.d_q_norm.data(),
                               .d_k_norm = to.d_k_norm.data(),
                               .x = part.x.data(),
                               .sums = r.sums.data(),
                               .dots = r.dots.data(),
                               .q_norm = part.q_norm.data(),
                               .k_norm = part.k_norm.data(),
                               .shape = shape};
    Workspace workspace(host::wide_qk_norm_backward_workspace_bytes(p));
    host::wide_qk_norm_backward(workspace.context(), p);
    EXPECT_TRUE(workspace.intact());
    r.parts.push_back(std::move(to));
  }
  return r;
}

}  // namespace tessera::kernels::testing
