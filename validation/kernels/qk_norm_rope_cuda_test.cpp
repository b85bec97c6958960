#include "base/check.hpp"
#include "device_array.hpp"
#include "qk_norm_rope_cases.hpp"

namespace tessera::kernels::testing::qk_norm_rope_cuda_test {
namespace {

class QkNormRopeCuda : public OnDevice {};

using Case = QkNormRopeCase;

template <class T>
struct Trial : QkNormRopeInputs<T> {
  using Inputs = QkNormRopeInputs<T>;
  using Inputs::c, Inputs::x, Inputs::q_norm, Inputs::k_norm, Inputs::d_qkv, Inputs::table, Inputs::d_q_norm, Inputs::d_k_norm;
  using Inputs::forward_arguments, Inputs::backward_arguments;
  std::vector<std::int32_t> starts_of_documents;  ///< or none
  explicit Trial(const Case& c) : Inputs(c) { this->poison_value_heads(); }

  struct Forward {
    std::vector<T> out;
    std::vector<float> rstd;
  };
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
    DeviceArray<std::int32_t> there(starts_of_documents);
    if (!starts_of_documents.empty()) p.document_starts = there.data();
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
    DeviceArray<std::int32_t> there(starts_of_documents);
    if (!starts_of_documents.empty()) p.document_starts = there.data();
    DeviceBytes workspace(cuda::qk_norm_rope_backward_workspace_bytes(p));
    cuda::qk_norm_rope_backward(workspace.context(), p);
    return {d.host(), d_q.host(), d_k.host()};
  }
};

// Positions restart with documents: the bits are those of a table that has a row for each token.
template <class T>
void restart_with_documents() {
  for (const Case& c : qk_norm_rope_document_cases) {
    SCOPED_TRACE(::testing::Message() << c);
    Trial<T> restarting(c), by_token(c);
    const auto starts = restarting.starts();
    restarting.starts_of_documents = starts;
    by_token.table = rotations_of(restarting.table, starts, c.T, c.turned()), by_token.c.T = c.M;
    const auto f = restarting.forward(), wanted = by_token.forward();
    EXPECT_EQ(digest(f.out, f.rstd), digest(wanted.out, wanted.rstd));
    EXPECT_EQ(restarting.backward().hash(), by_token.backward().hash());
  }
}
TEST_F(QkNormRopeCuda, PositionsRestartWithDocuments) {
  restart_with_documents<float>(), restart_with_documents<bf16>(), restart_with_documents<f16>();
}

template <class T>
void compare_with_host() {
  for (const Case& c : qk_norm_rope_cases) {
    SCOPED_TRACE(::testing::Message() << c);
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
TEST_F(QkNormRopeCuda, MatchesTheHostInFp16) { compare_with_host<f16>(); }

// Sums are taken in an order that depends on shapes alone: not on where operands lie, or on timing.
template <class T>
void same_bits(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c);
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
  DeviceSample sample;
  for (const Case& c : sample.some(qk_norm_rope_cases, 4)) same_bits<float>(c), same_bits<bf16>(c), same_bits<f16>(c);
}

TEST_F(QkNormRopeCuda, RefusesWhatItCannotDo) {
  EXPECT_THROW(cuda::qk_norm_rope_backward({}, {.M = 77, .T = 7, .H = 2, .G = 1, .D = 48}), Error) << "no workspace";
  EXPECT_THROW(cuda::qk_norm_rope_forward({}, {.M = 77, .T = 7, .H = 2, .G = 1, .D = 258}), Error);
  for (const std::int64_t rotated : {3, 50})
    EXPECT_THROW(cuda::qk_norm_rope_forward({}, {.M = 77, .T = 7, .H = 2, .G = 1, .D = 48, .rotated = rotated}), Error) << rotated;
}

}  // namespace
}  // namespace tessera::kernels::testing::qk_norm_rope_cuda_test
