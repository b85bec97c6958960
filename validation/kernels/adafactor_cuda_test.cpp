#include "adafactor_cases.hpp"
#include "device_array.hpp"

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
    std::vector<float> numbers;
    for (const Grad g : grad)
      numbers.push_back(std::is_same_v<Grad, std::int64_t> ? std::ldexp(static_cast<float>(g), -44) : static_cast<float>(g));
    const UpdateScalars s = adafactor_scalars(numbers, t, 0.7f);
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

/// Both calls on vectors, two steps from a state that is a mean of squares.
template <class Grad>
void compare_vector(const UpdateCase& c) {
  SCOPED_TRACE(::testing::Message() << c);
  UpdateState expected(c.n);
  for (float& v : expected.state[0]) v = std::abs(v) + 1e-6f;
  DeviceArray<float> master(expected.master), v(expected.state[0]);
  DeviceArray<bf16> param(expected.param);
  for (int t = 1; t <= 2; ++t) {
    UpdateScalars s = scalars_of_step(t, 3e-3f, 0.7f);
    s.skip = c.skip;
    const auto grad = c.skip ? poisoned<Grad>(c.n) : update_gradients<Grad>(c.n, 10 + static_cast<unsigned>(t));
    FixedSum sums[1];
    Update p = expected.call(0, c.copy);
    p.grad = grad.data(), p.grad_dtype = dtype_of<Grad>(), p.n = p.tensor_elements = c.n, p.weight_decay = 0.1f;
    p.scalars = &s, p.sums = sums;
    Update d = p;
    DeviceArray<Grad> device_grad(grad);
    DeviceArray<UpdateScalars> scalars(std::vector<UpdateScalars>{s});
    DeviceArray<FixedSum> device_sums(std::vector<FixedSum>(1));
    d.master = master.data(), d.state[0] = v.data(), d.grad = device_grad.data(), d.scalars = scalars.data(), d.sums = device_sums.data();
    Update first = p, device_first = d;
    first.param = device_first.param = nullptr, d.param = c.copy ? param.data() : nullptr;
    host::adafactor_vector_direction({}, first), cuda::adafactor_vector_direction({}, device_first);
    EXPECT_EQ(device_sums.host()[0].value(), sums[0].value());
    host::adafactor_vector({}, p), cuda::adafactor_vector({}, d);
  }
  EXPECT_EQ(digest(master.host(), v.host(), param.host()), digest(expected.master, expected.state[0], expected.param));
}

TEST_F(AdafactorCuda, OfVectorsHasTheBitsOfTheHost) {
  for (const UpdateCase& c : update_cases) {
    compare_vector<float>(c);
    compare_vector<bf16>(c);
    compare_vector<std::int64_t>(c);
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::adafactor_cuda_test
