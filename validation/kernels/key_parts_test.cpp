#include "base/check.hpp"
#include "key_parts_cases.hpp"

namespace tessera::kernels::testing::key_parts_test {
namespace {

template <class T>
KeyPartsResults<T> on_host(KeyParts p, const KeyPartsInputs<T>& in) {
  p.dtype = dtype_of<T>();
  KeyPartsResults<T> r(p);
  take_key_part({}, r.taken.data(), in.made.data(), p);
  join_key_parts({}, {.rows = r.rows.data(), .made = in.made.data(), .parts = in.parts.data(), .shape = p});
  spread_key_gradients({}, {.parts = r.spread.data(), .d_rows = in.d_rows.data(), .shape = p});
  put_key_part({}, r.d_made.data(), in.d_rows.data(), in.mine.data(), p);
  return r;
}

template <class T>
void compare() {
  for (const KeyParts& p : key_parts_cases) {
    SCOPED_TRACE(::testing::Message() << p.M << " tokens, " << p.D << " features, " << p.sharing << " of " << p.N << " ranks from "
                                      << p.first);
    const KeyPartsInputs<T> in(p);
    expect_same(on_host(p, in), by_definition(p, in));
  }
}
TEST(KeyParts, AreTheirDefinitionInFp32) { compare<float>(); }
TEST(KeyParts, AreTheirDefinitionInBf16) { compare<bf16>(); }
TEST(KeyParts, AreTheirDefinitionInFp16) { compare<f16>(); }

// What each rank spreads, summed, is for each part the sum of the gradients of the ranks that have the head.
TEST(KeyParts, GradientsOfAllRanksMeetWhereThePartWasMade) {
  const KeyParts shape{.M = 3, .H = 1, .D = 8, .N = 4, .sharing = 2};
  std::vector<double> sums(static_cast<std::size_t>(sizes_of(shape).parts), 0);
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    KeyParts p = shape;
    p.first = rank / 2 * 2;
    std::vector<float> d_rows(static_cast<std::size_t>(sizes_of(p).rows), static_cast<float>(1 << rank)),
        parts = poisoned<float>(sizes_of(p).parts);
    spread_key_gradients({}, {.parts = parts.data(), .d_rows = d_rows.data(), .shape = p});
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += parts[i];
  }
  for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], i < sums.size() / 2 ? 1 + 2 : 4 + 8) << i;
}

TEST(KeyParts, SameBitsOnAnyThreads) {
  const KeyParts large{.M = 3000, .H = 4, .D = 64, .N = 4, .sharing = 2, .first = 2};
  const KeyPartsInputs<float> in(large);
  expect_same_bits([&] {
    const KeyPartsResults<float> r = on_host(large, in);
    return digest(r.taken, r.rows, r.spread, r.d_made);
  });
}

TEST(KeyParts, PartsThatDoNotDivideAreRefused) {
  for (const KeyParts& p : {KeyParts{.M = 1, .H = 1, .D = 6, .N = 4, .sharing = 4}, KeyParts{.M = 1, .H = 1, .D = 6, .N = 4, .sharing = 3},
                            KeyParts{.M = 1, .H = 1, .D = 6, .N = 4, .sharing = 2, .first = 1}}) {
    EXPECT_THROW(host::join_key_parts({}, {.shape = p}), Error);
    EXPECT_THROW(host::spread_key_gradients({}, {.shape = p}), Error);
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::key_parts_test
