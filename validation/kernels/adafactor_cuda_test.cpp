#include "adafactor_cases.hpp"
#include "device_array.hpp"
#include "update_cuda_cases.hpp"

namespace tessera::kernels::testing::adafactor_cuda_test {
namespace {

class AdafactorCuda : public OnDevice {};

/// Two steps on both of a matrix, or of what begins at `first` of a box of its columns from `column` on; bits are compared.
template <class Grad>
void compare(std::int64_t rows, std::int64_t columns, std::int64_t column, std::int64_t width, std::int64_t first) {
  SCOPED_TRACE(::testing::Message() << rows << " x " << columns << ", box of " << width << " from " << column << ", from " << first);
  AdafactorMatrix expected(rows, columns);
  const std::int64_t n = rows * width - first;
  DeviceArray<float> master(expected.master), of_rows(expected.of_rows), of_columns(expected.of_columns);
  DeviceArray<bf16> param(expected.param);
  for (int t = 1; t <= 2; ++t) {
    const auto grad = update_gradients<Grad>(n, 10 + static_cast<unsigned>(t));
    const UpdateScalars s = adafactor_scalars(matrix_gradients(rows, columns, 3), t, 0.7f);
    std::vector<std::int64_t> words(static_cast<std::size_t>(expected.words()));
    FixedSum sums[1];
    Update p = expected.call(0, n, words.data(), sums);
    p.lines.column = column, p.lines.width = width, p.lines.first = first;
    p.grad = grad.data(), p.grad_dtype = dtype_of<Grad>(), p.scalars = &s;
    Update d = p;
    DeviceArray<Grad> device_grad(grad);
    DeviceArray<UpdateScalars> scalars(std::vector<UpdateScalars>{s});
    DeviceArray<std::int64_t> device_words(words);
    DeviceArray<FixedSum> device_sums(std::vector<FixedSum>(1));
    d.master = master.data(), d.param = param.data(), d.grad = device_grad.data(), d.scalars = scalars.data(), d.sums = device_sums.data();
    d.lines.of_rows = of_rows.data(), d.lines.of_columns = of_columns.data(), d.lines.sums = device_words.data();
    host::adafactor_squares({}, p), cuda::adafactor_squares({}, d);
    EXPECT_EQ(device_words.host(), words);
    host::adafactor_lines({}, p), cuda::adafactor_lines({}, d);
    host::adafactor_direction({}, p), cuda::adafactor_direction({}, d);
    EXPECT_EQ(device_sums.host()[0].value(), sums[0].value());
    host::adafactor({}, p), cuda::adafactor({}, d);
  }
  EXPECT_EQ(digest(master.host(), of_rows.host(), of_columns.host(), param.host()).hex(), expected.hash().hex());
}

TEST_F(AdafactorCuda, HasTheBitsOfTheHost) {
  for (const auto& [rows, columns] : matrices) {
    compare<float>(rows, columns, 0, columns, 0);
    compare<bf16>(rows, columns, columns / 3, columns - columns / 3, 0);
    compare<std::int64_t>(rows, columns, 0, columns, rows * columns / 3);
  }
}

template <auto direction, auto apply>
void on_vector(const Context&, const Update& of, FixedSum* sums) {
  Update p = of;
  p.sums = sums, p.tensor_elements = p.n;
  Update first = p;
  first.param = nullptr;
  direction({}, first);
  apply({}, p);
}
void vector_on_host(const Context& context, const Update& p) {
  FixedSum sums[1];
  on_vector<host::adafactor_vector_direction, host::adafactor_vector>(context, p, sums);
}
void vector_on_device(const Context& context, const Update& p) {
  DeviceArray<FixedSum> sums(std::vector<FixedSum>(1));
  on_vector<cuda::adafactor_vector_direction, cuda::adafactor_vector>(context, p, sums.data());
}

TEST_F(AdafactorCuda, OfVectorsHasTheBitsOfTheHost) { expect_bits_of_the_host(vector_on_host, vector_on_device); }

}  // namespace
}  // namespace tessera::kernels::testing::adafactor_cuda_test
