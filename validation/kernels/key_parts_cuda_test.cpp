#include "device_array.hpp"
#include "key_parts_cases.hpp"

namespace tessera::kernels::testing::key_parts_cuda_test {
namespace {

class KeyPartsCuda : public OnDevice {};

template <class T>
KeyPartsResults<T> on_device(KeyParts p, const KeyPartsInputs<T>& in, std::int64_t shift) {
  p.dtype = dtype_of<T>();
  const KeyPartsSizes n = sizes_of(p);
  DeviceArray<T> made(in.made, shift), parts(in.parts, shift), d_rows(in.d_rows, shift), mine(in.mine, shift);
  DeviceArray<T> taken(n.mine, shift), rows(n.rows, shift), spread(n.parts, shift), d_made(n.made, shift);
  const Context context{.workspace = {}, .backend = Backend::cuda};
  take_key_part(context, taken.data(), made.data(), p);
  join_key_parts(context, {.rows = rows.data(), .made = made.data(), .parts = parts.data(), .shape = p});
  spread_key_gradients(context, {.parts = spread.data(), .d_rows = d_rows.data(), .shape = p});
  put_key_part(context, d_made.data(), d_rows.data(), mine.data(), p);
  KeyPartsResults<T> r(p);
  r.taken = taken.host(), r.rows = rows.host(), r.spread = spread.host(), r.d_made = d_made.host();
  return r;
}

// Whole sixteen bytes where parts have them, single elements elsewhere and where operands lie anyhow.
template <class T>
void compare() {
  for (const KeyParts& p : key_parts_cases)
    for (const std::int64_t shift : {0, 1}) {
      SCOPED_TRACE(::testing::Message() << p.M << " tokens, " << p.D << " features, " << p.sharing << " of " << p.N << " ranks from "
                                        << p.first << ", shifted by " << shift);
      const KeyPartsInputs<T> in(p);
      expect_same(on_device(p, in, shift), by_definition(p, in));
    }
}
TEST_F(KeyPartsCuda, AreTheirDefinitionInFp32) { compare<float>(); }
TEST_F(KeyPartsCuda, AreTheirDefinitionInBf16) { compare<bf16>(); }
TEST_F(KeyPartsCuda, AreTheirDefinitionInFp16) { compare<f16>(); }

}  // namespace
}  // namespace tessera::kernels::testing::key_parts_cuda_test
