#include "base/check.hpp"
#include "device_array.hpp"
#include "documents.hpp"
#include "kernels/qk_norm_rope/qk_norm_rope.hpp"
#include "kernels/rope/rope.hpp"

namespace tessera::kernels::testing::qk_norm_rope_cuda_test {
namespace {

class QkNormRopeCuda : public OnDevice {};

struct Case {
  std::int64_t M, T, H, G, D;
  std::int64_t heads() const { return H + G; }
  std::int64_t width() const { return (H + 2 * G) * D; }
};
// From a head on one thread to heads on whole warps, odd halves, positions that wrap, heads that are no power of two, several row blocks.
const Case cases[] = {{1, 1, 1, 1, 2},    {9, 4, 3, 1, 6},     {45, 16, 6, 2, 18}, {10, 5, 4, 2, 30},
                      {33, 40, 5, 5, 48}, {77, 50, 8, 2, 128}, {21, 7, 3, 1, 256}, {130, 64, 4, 1, 64}};

/// The query and key heads of each row, without the value heads.
template <class T>
std::vector<T> turned_heads(const std::vector<T>& v, const Case& c) {
  std::vector<T> out;
  for (std::int64_t m = 0; m < c.M; ++m) out.insert(out.end(), v.begin() + m * c.width(), v.begin() + m * c.width() + c.heads() * c.D);
  return out;
}
template <class T>
std::vector<T> value_heads(const std::vector<T>& v, const Case& c) {
  std::vector<T> out;
  for (std::int64_t m = 0; m < c.M; ++m)
    out.insert(out.end(), v.begin() + m * c.width() + c.heads() * c.D, v.begin() + (m + 1) * c.width());
  return out;
}

template <class T>
struct Trial {
  Case c;
  std::vector<T> x, q_norm, k_norm, d_qkv;
  std::vector<float> table, d_q_norm, d_k_norm;
  std::vector<std::int32_t> starts;  ///< of documents, or none
  explicit Trial(const Case& c)
      : c(c),
        x(random_values<T>(c.M * c.width(), 1)),
        q_norm(random_values<T>(c.D, 2)),
        k_norm(random_values<T>(c.D, 3)),
        d_qkv(random_values<T>(c.M * c.width(), 4)),
        table(poisoned<float>(c.T * c.D)),
        d_q_norm(random_values<float>(c.D, 5)),
        d_k_norm(random_values<float>(c.D, 6)) {
    rope_table(table.data(), 3, c.T, c.D, 10000, {});
    // The gradient of value heads is neither read nor written.
    const auto poison = poisoned<T>(c.G * c.D);
    for (std::int64_t m = 0; m < c.M; ++m) std::copy(poison.begin(), poison.end(), d_qkv.begin() + m * c.width() + c.heads() * c.D);
  }

  struct Forward {
    std::vector<T> out;
    std::vector<float> rstd;
  };
  QkNormRopeForward forward_arguments() const {
    return {.x = x.data(),
            .q_norm = q_norm.data(),
            .k_norm = k_norm.data(),
            .table = table.data(),
            .M = c.M,
            .T = c.T,
            .H = c.H,
            .G = c.G,
            .D = c.D,
            .dtype = dtype_of<T>()};
  }
  Forward host_forward() const {
    Forward f{poisoned<T>(c.M * c.width()), poisoned<float>(c.M * c.heads())};
    QkNormRopeForward p = forward_arguments();
    p.out = f.out.data(), p.rstd = f.rstd.data();
    host::qk_norm_rope_forward({}, p);
    return f;
  }
  Forward forward(std::int64_t shift = 0) const {
    DeviceArray<T> out(c.M * c.width(), shift), dx(x, shift), q(q_norm, shift), k(k_norm, shift);
    DeviceArray<float> rstd(c.M * c.heads()), angles(table);
    QkNormRopeForward p = forward_arguments();
    p.out = out.data(), p.rstd = rstd.data(), p.x = dx.data(), p.q_norm = q.data(), p.k_norm = k.data(), p.table = angles.data();
    DeviceArray<std::int32_t> there(starts);
    if (!starts.empty()) p.document_starts = there.data();
    cuda::qk_norm_rope_forward({}, p);
    return {out.host(), rstd.host()};
  }
  /// In place, without statistics.
  std::vector<T> forward_in_place() const {
    DeviceArray<T> dx(x), q(q_norm), k(k_norm);
    DeviceArray<float> angles(table);
    QkNormRopeForward p = forward_arguments();
    p.out = dx.data(), p.x = dx.data(), p.q_norm = q.data(), p.k_norm = k.data(), p.table = angles.data();
    cuda::qk_norm_rope_forward({}, p);
    return dx.host();
  }

  struct Backward {
    std::vector<T> d_qkv;
    std::vector<float> d_q_norm, d_k_norm;
    std::string hash() const { return digest(d_qkv, d_q_norm, d_k_norm).hex(); }
  };
  QkNormRopeBackward backward_arguments() const {
    return {.x = x.data(),
            .q_norm = q_norm.data(),
            .k_norm = k_norm.data(),
            .table = table.data(),
            .M = c.M,
            .T = c.T,
            .H = c.H,
            .G = c.G,
            .D = c.D,
            .dtype = dtype_of<T>()};
  }
  Backward host_backward() const {
    Backward b{d_qkv, d_q_norm, d_k_norm};
    const auto rstd = host_forward().rstd;
    QkNormRopeBackward p = backward_arguments();
    p.d_qkv = b.d_qkv.data(), p.d_q_norm = b.d_q_norm.data(), p.d_k_norm = b.d_k_norm.data(), p.rstd = rstd.data();
    Workspace workspace(host::qk_norm_rope_backward_workspace_bytes(p));
    host::qk_norm_rope_backward(workspace.context(), p);
    return b;
  }
  Backward backward(std::int64_t shift = 0) const {
    DeviceArray<T> d(d_qkv, shift), dx(x, shift), q(q_norm, shift), k(k_norm, shift);
    DeviceArray<float> rstd(host_forward().rstd), angles(table), d_q(d_q_norm), d_k(d_k_norm);
    QkNormRopeBackward p = backward_arguments();
    p.d_qkv = d.data(), p.d_q_norm = d_q.data(), p.d_k_norm = d_k.data(), p.rstd = rstd.data();
    p.x = dx.data(), p.q_norm = q.data(), p.k_norm = k.data(), p.table = angles.data();
    DeviceArray<std::int32_t> there(starts);
    if (!starts.empty()) p.document_starts = there.data();
    DeviceBytes workspace(cuda::qk_norm_rope_backward_workspace_bytes(p));
    cuda::qk_norm_rope_backward(workspace.context(), p);
    return {d.host(), d_q.host(), d_k.host()};
  }
};

// Positions restart with documents: the bits are those of a table that has a row for each token.
template <class T>
void restart_with_documents() {
  for (const Case& c : {Case{45, 15, 6, 2, 18}, Case{100, 50, 8, 2, 128}, Case{128, 64, 4, 1, 64}}) {
    const auto starts = random_documents(c.M / c.T, c.T, 3);
    Trial<T> restarting(c), by_token(c);
    restarting.starts = starts;
    by_token.table = rotations_of(restarting.table, starts, c.T, c.D), by_token.c.T = c.M;
    const auto f = restarting.forward(), wanted = by_token.forward();
    EXPECT_EQ(digest(f.out, f.rstd), digest(wanted.out, wanted.rstd));
    EXPECT_EQ(restarting.backward().hash(), by_token.backward().hash());
  }
}
TEST_F(QkNormRopeCuda, PositionsRestartWithDocuments) { restart_with_documents<float>(), restart_with_documents<bf16>(); }

template <class T>
void compare_with_host() {
  for (const Case& c : cases) {
    SCOPED_TRACE(::testing::Message() << c.M << " rows, T " << c.T << ", H " << c.H << ", G " << c.G << ", D " << c.D);
    const Trial<T> t(c);
    const auto f = t.forward(), wanted = t.host_forward();
    EXPECT_LT(norm_error(f.out, wanted.out), sizeof(T) == 4 ? 1e-6 : 2e-3);
    EXPECT_LT(norm_error(f.rstd, wanted.rstd), 1e-6);
    EXPECT_EQ(digest(value_heads(f.out, c)), digest(value_heads(t.x, c)));

    const auto b = t.backward(), expected = t.host_backward();
    // With D = 2 most of the gradient cancels.
    const double allowed = sizeof(T) == 4 ? (c.D == 2 ? 1e-5 : 1e-6) : (c.D == 2 ? 1e-2 : 2e-3);
    EXPECT_LT(norm_error(turned_heads(b.d_qkv, c), turned_heads(expected.d_qkv, c)), allowed);
    EXPECT_EQ(digest(value_heads(b.d_qkv, c)), digest(value_heads(t.d_qkv, c)));
    EXPECT_LT(norm_error(b.d_q_norm, expected.d_q_norm), 2e-6);
    EXPECT_LT(norm_error(b.d_k_norm, expected.d_k_norm), 2e-6);
  }
}
TEST_F(QkNormRopeCuda, MatchesTheHostInFp32) { compare_with_host<float>(); }
TEST_F(QkNormRopeCuda, MatchesTheHostInBf16) { compare_with_host<bf16>(); }

// Sums are taken in an order that depends on shapes alone: not on where operands lie, or on timing.
template <class T>
void same_bits(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c.M << " rows, D " << c.D);
  const Trial<T> t(c);
  const auto f = t.forward();
  EXPECT_EQ(digest(t.forward(1).out), digest(f.out));
  EXPECT_EQ(digest(t.forward_in_place()), digest(f.out));
  EXPECT_EQ(t.backward(1).hash(), t.backward().hash());
  expect_same_bits_on_device([&] {
    const auto again = t.forward();
    const auto b = t.backward();
    return digest(again.out, again.rstd, b.d_qkv, b.d_q_norm, b.d_k_norm);
  });
}
TEST_F(QkNormRopeCuda, SameBitsWhereverOperandsLie) {
  for (const Case& c : cases) same_bits<float>(c), same_bits<bf16>(c);
}

TEST_F(QkNormRopeCuda, RefusesWhatItCannotDo) {
  EXPECT_THROW(cuda::qk_norm_rope_backward({}, {.M = 77, .T = 7, .H = 2, .G = 1, .D = 48}), Error) << "no workspace";
  EXPECT_THROW(cuda::qk_norm_rope_forward({}, {.M = 77, .T = 7, .H = 2, .G = 1, .D = 258}), Error);
}

}  // namespace
}  // namespace tessera::kernels::testing::qk_norm_rope_cuda_test
