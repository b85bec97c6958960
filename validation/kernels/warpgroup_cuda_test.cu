// Products of a warpgroup (kernels/cuda/warpgroup.hpp) against plain ones, by themselves and on tiles as attention uses them: on a Hopper
// GPU this tests our reading of the PTX ISA, in the emulator its twins. Where an operand is not read as it was stored, the message says
// which of its elements was read instead, and which field of the descriptor decides that.
#include "base/backend.hpp"
#include "kernels/cuda/warpgroup.hpp"

#include <cmath>
#include <iomanip>
#include <span>
#include <sstream>

#include "kernels/attention/warpgroup_tiles.hpp"
#include "validation/kernels/device_array.hpp"
#include "validation/kernels/warpgroup_product.hpp"

namespace tessera::kernels::testing::warpgroup_cuda_test {
namespace {

using namespace tessera::cuda;

using warpgroup_product::multiply, warpgroup_product::whole;

template <class T, bool transposed>
void expect_product() {
  const warpgroup_product::Product<T> x(transposed);
  DeviceArray<T> a(x.a), b(x.b);
  DeviceArray<float> c(x.c);
  launch(nullptr, 1, warpgroup_lanes, 8192, multiply<T, transposed>, c.data(), static_cast<const T*>(a.data()),
         static_cast<const T*>(b.data()));
  EXPECT_EQ(c.host(), x.want);
}

// Tiles as attention has them, by its own code: left (128 rows, 128 columns) and right (64, 128) in panels, 64 rows of left for each of two
// warpgroups. left_right = left right^T and q_right = q right^T (128, 64), first products not adding; p_right (128, 128) += p right.
namespace tiles = kernels::cuda::warpgroup_tiles;
constexpr int columns = 128, gap = 8192;  // gap: elements after each tile, of the value `elsewhere`
constexpr float elsewhere = -1;
constexpr std::size_t shared_elements = (tiles::rows + tiles::step) * columns + 2 * gap;

template <class T>
struct Tiles {
  const T *left, *right;  // for shared memory
  const T *q, *p;         // (128, 128) and (128, 64), for registers
  float *left_right, *q_right, *p_right;
  std::uint64_t* descriptors;  // of each warpgroup's rows in left, and of right
};

// A warp's 16 rows of a (rows, width) from `row` on, as left operands.
template <int width, class T>
__device__ void load_left(std::uint32_t (&left)[width / 16][4], const T* a, int row) {
  const int lane = tiles::lane_index();
  for (int k = 0; k < width / 16; ++k)
    for (int i = 0; i < 4; ++i) {
      const T* at = a + (row + lane / 4 + i % 2 * 8) * width + 16 * k + i / 2 * 8 + lane % 4 * 2;
      left[k][i] = at[0].bits | static_cast<std::uint32_t>(at[1].bits) << 16;
    }
}

// Calls f(sum, its place in c) for a warp's sums; c has rows of `width`.
template <class F>
__device__ void for_sums(float (&sums)[8][4], float* c, int width, int row, F f) {
  const int lane = tiles::lane_index();
#pragma unroll
  for (int i = 0; i < 32; ++i) f(sums[i / 4][i % 4], c[(row + lane / 4 + i % 4 / 2 * 8) * width + i / 4 * 8 + lane % 4 * 2 + i % 2]);
}

template <class T>
__global__ void __launch_bounds__(tiles::block_threads) multiply_tiles(Tiles<T> x) {
  T* left = dynamic_shared<T>();
  T* right = left + tiles::rows * columns + gap;
  const int thread = static_cast<int>(threadIdx.x), row = tiles::warp_index() * 16;
  for (int i = thread; i < static_cast<int>(shared_elements); i += tiles::block_threads)
    left[i].bits = std::is_same_v<T, bf16> ? 0xbf80 : 0xbc00;  // elsewhere
  __syncthreads();
  tiles::load_panels<columns, tiles::rows, true>(left, x.left, columns, tiles::rows, columns);
  tiles::load_panels<columns, tiles::step, true>(right, x.right, columns, tiles::step, columns);
  copy_async_commit();
  copy_async_wait<0>();
  shared_to_products();
  __syncthreads();
  if (thread == 0) x.descriptors[2] = panel_descriptor(shared_address(right));
  left += thread / warpgroup_lanes * 64 * panel_columns;
  if (thread % warpgroup_lanes == 0) x.descriptors[thread / warpgroup_lanes] = panel_descriptor(shared_address(left));
  const auto load = [](float& sum, const float& from) { sum = from; };
  const auto store = [](const float& sum, float& to) { to = sum; };
  std::uint32_t q[columns / 16][4], p[tiles::step / 16][4];
  float first[8][4], last[8][4], out[columns / 64][8][4];
  load_left<columns>(q, x.q, row);
  load_left<tiles::step>(p, x.p, row);
  fence_registers(q);
  for_sums(first, x.left_right, 64, row, load);  // NaN at first: a first product must not add
  for_sums(last, x.q_right, 64, row, load);
#pragma unroll
  for (int n = 0; n < columns / 64; ++n) for_sums(out[n], x.p_right + 64 * n, columns, row, load);
  tiles::start_scores<columns / 16>(first, left, right);
  tiles::start_outputs<columns>(out, p, right);
  warpgroup_wait<1>();
  fence_registers(first);
  for_sums(first, x.left_right, 64, row, store);  // while the outputs are on their way
  tiles::start_scores(last, q, right);
  warpgroup_wait<1>();
#pragma unroll
  for (int n = 0; n < columns / 64; ++n) {
    fence_registers(out[n]);
    for_sums(out[n], x.p_right + 64 * n, columns, row, store);
  }
  warpgroup_wait<0>();
  fence_registers(last);
  for_sums(last, x.q_right, 64, row, store);
}

using Matrix = std::vector<float>;  // row by row

// (rows, width) of f(row, column).
template <class F>
Matrix matrix(int rows, int width, F f) {
  Matrix m;
  for (int i = 0; i < rows * width; ++i) m.push_back(static_cast<float>(f(i / width, i % width)));
  return m;
}

struct Products {
  Matrix left_right, q_right, p_right;
  std::vector<std::uint64_t> descriptors;
};

template <class T = bf16>
Products multiply_tiles(const Matrix& left, const Matrix& right, const Matrix& q, const Matrix& p, const Matrix& sums) {
  const auto in_type = [](const Matrix& m) {
    std::vector<T> r;
    for (float x : m) r.emplace_back(x);
    return r;
  };
  DeviceArray<T> on_left(in_type(left)), on_right(in_type(right)), on_q(in_type(q)), on_p(in_type(p));
  DeviceArray<float> left_right(128 * 64), q_right(128 * 64), p_right(sums);
  DeviceArray<std::uint64_t> descriptors(3);
  launch(nullptr, 1, tiles::block_threads, shared_elements * half_bytes, multiply_tiles<T>,
         Tiles<T>{on_left.data(), on_right.data(), on_q.data(), on_p.data(), left_right.data(), q_right.data(), p_right.data(),
                  descriptors.data()});
  return {left_right.host(), q_right.host(), p_right.host(), descriptors.host()};
}

// The element of a tile that a product read in place of another. Element (r, c) holds r + 2 in one run and c + 2 in a second, which bf16
// holds exactly; the other operand of these runs is 0 but for a 1.
std::string element_read(float row, float column) {
  std::ostringstream s;
  const auto inside = [](float x) { return x >= 2 && x < 130 && x == std::floor(x); };
  if (inside(row) && inside(column))
    s << "row " << std::setw(3) << row - 2 << ", column " << std::setw(3) << column - 2;
  else if (row == elsewhere && column == elsewhere)
    s << "what lies outside of the tiles";
  else if (row == column && (row == 0 || row == 1))
    s << "nothing, or the other operand";
  else if (std::isnan(row) && std::isnan(column))
    s << "NaN: no product, or one that should not have added";
  else
    s << "sums " << row << " and " << column << ", of several elements";
  return s.str();
}

// An element of a tile, and what its place depends on besides that of those above it.
struct Probe {
  int row, column;
  const char* decides;
};
constexpr Probe of_rows[] = {{0, 0, "start address, bits 0-13"},
                             {0, 1, "order within 16 bytes"},
                             {0, 8, "second 16 bytes of a row: swizzle mode, bits 62-63; in another mode leading offset, bits 16-29"},
                             {0, 16, "start address moved by 32 bytes"},
                             {0, 32, "start address moved by 64 bytes"},
                             {0, 64, "start address of the next panel"},
                             {1, 0, "rows of 128 bytes, chunk ^ row % 8: swizzle mode, bits 62-63; base offset, bits 49-51"},
                             {2, 0, "the same"},
                             {4, 0, "the same"},
                             {5, 56, "the same where the start address is moved"},
                             {8, 0, "stride offset, bits 32-45"},
                             {16, 0, "stride offset; of left the second warp"},
                             {32, 0, "stride offset; of left the third warp"},
                             {64, 0, "of left, the second warpgroup's start address"}};
constexpr Probe of_columns[] = {{0, 0, "start address, bits 0-13"},
                                {0, 1, "transposition (the instruction's last operand), order within 16 bytes"},
                                {0, 8, "further 16 bytes of a row: swizzle mode, bits 62-63; in another mode an offset"},
                                {0, 16, "the same"},
                                {0, 32, "the same"},
                                {0, 64, "start address of the next panel"},
                                {1, 0, "rows of 128 bytes, chunk ^ row % 8: swizzle mode, bits 62-63; base offset, bits 49-51"},
                                {2, 0, "the same"},
                                {4, 0, "the same"},
                                {5, 56, "the same"},
                                {8, 0, "rows 8 to 15 of a product: stride offset, bits 32-45, or leading offset, bits 16-29"},
                                {16, 0, "start address of the second product of 16 rows"},
                                {32, 0, "start address of the third product of 16 rows"}};

// rows and columns (n, 128): what the two runs gave in place of each element of a tile of n rows.
void expect_read_in_place(const std::string& operand, std::uint64_t descriptor, const Matrix& rows, const Matrix& columns_read,
                          std::span<const Probe> probes) {
  const auto in_place = [&](std::size_t i) {
    return rows[i] == static_cast<float>(i / columns + 2) && columns_read[i] == static_cast<float>(i % columns + 2);
  };
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) wrong += !in_place(i);
  if (wrong == 0) return;
  std::ostringstream table;
  table << operand << ", descriptor 0x" << std::hex << descriptor << std::dec << ": " << wrong << " of " << rows.size()
        << " elements are not read from where they are\n";
  for (const Probe& p : probes) {
    const auto i = static_cast<std::size_t>(p.row * columns + p.column);
    if (i >= rows.size()) continue;
    table << "  for row " << std::setw(3) << p.row << ", column " << std::setw(3) << p.column << " came "
          << (in_place(i) ? "      that element     " : element_read(rows[i], columns_read[i])) << "   (" << p.decides << ")\n";
  }
  ADD_FAILURE() << table.str();
}

const auto row_number = [](int r, int) { return r + 2; };
const auto column_number = [](int, int c) { return c + 2; };

// q is the identity, and so are the two halves of p: a sum is the element of right that was read as (its column, its row), or transposed.
void expect_right_in_place() {
  const Matrix outside(128 * 128, elsewhere), q = matrix(128, 128, [](int r, int c) { return r == c; }),
                                              p = matrix(128, 64, [](int r, int c) { return r % 64 == c; }), zero(128 * 128);
  const Products by_row = multiply_tiles(outside, matrix(64, 128, row_number), q, p, zero);
  const Products by_column = multiply_tiles(outside, matrix(64, 128, column_number), q, p, zero);
  const auto turned = [](const Matrix& sums) {
    return matrix(64, 128, [&](int n, int k) { return sums[static_cast<std::size_t>(k * 64 + n)]; });
  };
  expect_read_in_place("right, its rows as columns of the product", by_row.descriptors[2], turned(by_row.q_right),
                       turned(by_column.q_right), of_rows);
  for (std::size_t warpgroup : {0, 1}) {
    const auto half = [&](const Matrix& sums) {
      const auto begin = sums.begin() + static_cast<std::ptrdiff_t>(warpgroup * 64 * 128);
      return Matrix(begin, begin + 64 * 128);
    };
    expect_read_in_place(warpgroup == 0 ? "right, its rows as the product's depth" : "the same by the second warpgroup",
                         by_row.descriptors[2], half(by_row.p_right), half(by_column.p_right), of_columns);
  }
}

// right's rows are halves of the identity: a sum is the element of left that was read as (its row, its column).
void expect_left_in_place() {
  const Matrix q(128 * 128), p(128 * 64), zero(128 * 128);
  Matrix read[2];
  std::vector<std::uint64_t> descriptors;
  for (int which : {0, 1}) {
    Matrix halves[2];
    for (int h : {0, 1}) {
      const Matrix right = matrix(64, 128, [&](int n, int k) { return k == n + 64 * h; });
      const Products x = multiply_tiles(which == 0 ? matrix(128, 128, row_number) : matrix(128, 128, column_number), right, q, p, zero);
      halves[h] = x.left_right;
      descriptors = x.descriptors;
    }
    read[which] = matrix(128, 128, [&](int m, int k) { return halves[k / 64][static_cast<std::size_t>(m * 64 + k % 64)]; });
  }
  std::ostringstream name;
  name << "left (true where right is read in place; the second warpgroup's descriptor is 0x" << std::hex << descriptors[1] << ")";
  expect_read_in_place(name.str(), descriptors[0], read[0], read[1], of_rows);
}

void expect_equal(const char* name, const Matrix& got, const Matrix& want, int width) {
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = want.size(); i-- > 0;)
    if (got[i] != want[i]) ++wrong, first = i;
  const auto w = static_cast<std::size_t>(width);
  EXPECT_EQ(wrong, 0u) << name << ": the first is (" << first / w << ", " << first % w << "): " << got[first] << " for " << want[first];
}

// Whole numbers, so that every sum is exact.
template <class T>
void expect_products_of_tiles() {
  const auto numbers = [](int rows, int width, std::size_t prime) {
    return matrix(rows, width, [&](int r, int c) { return whole(static_cast<std::size_t>(r * width + c), prime); });
  };
  const Matrix left = numbers(128, 128, 7), right = numbers(64, 128, 11), q = numbers(128, 128, 17), p = numbers(128, 64, 19),
               sums = numbers(128, 128, 13);
  const Products got = multiply_tiles<T>(left, right, q, p, sums);
  const auto by_rows = [&](const Matrix& a) {
    return matrix(128, 64, [&](int m, int n) {
      float sum = 0;
      for (int k = 0; k < 128; ++k) sum += a[static_cast<std::size_t>(m * 128 + k)] * right[static_cast<std::size_t>(n * 128 + k)];
      return sum;
    });
  };
  expect_equal("left right^T, left by descriptor", got.left_right, by_rows(left), 64);
  expect_equal("q right^T, q in registers", got.q_right, by_rows(q), 64);
  expect_equal("sums + p right", got.p_right,
               matrix(128, 128,
                      [&](int m, int n) {
                        float sum = sums[static_cast<std::size_t>(m * 128 + n)];
                        for (int k = 0; k < 64; ++k)
                          sum += p[static_cast<std::size_t>(m * 64 + k)] * right[static_cast<std::size_t>(k * 128 + n)];
                        return sum;
                      }),
               128);
}

// c (64, columns) = a b, both in shared memory, over a depth of 64 that is along their rows or, if `down`, down their columns: a is (64,
// 64), b (columns, 64) or (64, columns).
template <class T, int columns, bool a_down, bool b_down>
__global__ void multiply_shared(float* c, const T* a, const T* b) {
  constexpr int b_rows = b_down ? 64 : columns, b_columns = b_down ? columns : 64;
  T* left = dynamic_shared<T>();
  T* right = left + 64 * 64;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < 64 * 8; i += warpgroup_lanes) copy_async_16(left + panel_chunk_at<64>(i / 8, i % 8), a + i * 8, 16);
  for (int i = thread; i < columns * 8; i += warpgroup_lanes)
    copy_async_16(right + panel_chunk_at<b_rows>(i / (b_columns / 8), i % (b_columns / 8)), b + i * 8, 16);
  copy_async_commit();
  copy_async_wait<0>();
  shared_to_products();
  __syncthreads();
  const std::uint64_t from_a = panel_descriptor(shared_address(left)),
                      from_b = panel_descriptor(shared_address(right), b_down && columns > 64 ? 64 * 128 : 1024);
  float sums[columns / 8][4] = {};
  fence_registers(sums);
  warpgroup_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k)
    start_product<T, b_down, a_down>(sums, tessera::cuda::further(from_a, k * (a_down ? 16 * 128 : 32)),
                                     tessera::cuda::further(from_b, k * (b_down ? 16 * 128 : 32)), k > 0);
  warpgroup_commit();
  warpgroup_wait<0>();
  fence_registers(sums);
  const int row = tiles::warp_index() * 16 + tiles::lane_index() / 4, column = tiles::lane_index() % 4 * 2;
#pragma unroll
  for (int i = 0; i < columns / 2; ++i) c[(row + i % 4 / 2 * 8) * columns + i / 4 * 8 + column + i % 2] = sums[i / 4][i % 4];
}

// Whole numbers again. A sum that is wrong from column 64 on alone, of b down its columns, names the leading offset (bits 16-29).
template <class T, int columns, bool a_down, bool b_down>
void expect_shared_product() {
  const auto at = [](bool down, int i, int k, int width, std::size_t prime) {
    return whole(static_cast<std::size_t>(down ? k * width + i : i * 64 + k), prime);
  };
  const auto stored = [](int count, std::size_t prime) {
    std::vector<T> x;
    for (int i = 0; i < count; ++i) x.emplace_back(whole(static_cast<std::size_t>(i), prime));
    return x;
  };
  DeviceArray<T> a(stored(64 * 64, 7)), b(stored(columns * 64, 11));
  DeviceArray<float> c(64 * columns);
  launch(nullptr, 1, warpgroup_lanes, (64 + columns) * 128, multiply_shared<T, columns, a_down, b_down>, c.data(), a.data(), b.data());
  const auto name = "both in shared memory, " + std::to_string(columns) + " columns, left " + (a_down ? "down" : "along") + ", right " +
                    (b_down ? "down" : "along");
  expect_equal(name.c_str(), c.host(),
               matrix(64, columns,
                      [&](int m, int n) {
                        float sum = 0;
                        for (int k = 0; k < 64; ++k) sum += at(a_down, m, k, 64, 7) * at(b_down, n, k, columns, 11);
                        return sum;
                      }),
               columns);
}

template <class T, int columns>
void expect_shared_products() {
  expect_shared_product<T, columns, false, false>();
  expect_shared_product<T, columns, false, true>();
  expect_shared_product<T, columns, true, false>();
  expect_shared_product<T, columns, true, true>();
}

class Warpgroup : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_NEEDS_DEVICE();
#ifndef TESSERA_EMULATED_GPU
    int major = 0;
    TESSERA_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9) GTEST_SKIP() << "not a Hopper GPU: its products are not tested";
#endif
  }
};

TEST_F(Warpgroup, MultipliesRowsByRows) { expect_product<bf16, false>(), expect_product<f16, false>(); }
TEST_F(Warpgroup, MultipliesRowsByColumns) { expect_product<bf16, true>(), expect_product<f16, true>(); }
TEST_F(Warpgroup, ReadsTheRightTileInPlace) { expect_right_in_place(); }
TEST_F(Warpgroup, ReadsTheLeftTileInPlace) { expect_left_in_place(); }
TEST_F(Warpgroup, MultipliesTilesOfAttention) { expect_products_of_tiles<bf16>(), expect_products_of_tiles<f16>(); }
TEST_F(Warpgroup, MultipliesTilesInSharedMemory) {
  expect_shared_products<bf16, 64>(), expect_shared_products<f16, 64>();
  expect_shared_products<bf16, 128>(), expect_shared_products<f16, 128>();
  expect_shared_products<bf16, 256>(), expect_shared_products<f16, 256>();
}

}  // namespace
}  // namespace tessera::kernels::testing::warpgroup_cuda_test
