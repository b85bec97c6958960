// Every collective on every path against sums computed here, over types, odd counts, strides, in place, accumulation and kinds of memory.
#include "topology/communicator.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>

#include "topology/make_communicator.hpp"
#include "world_main.hpp"

namespace tessera {
namespace {

using testing::world;

Mesh all_dp() { return {{1, world().ranks(), 1, 1, 1}}; }

/// A value that depends on (rank, index) only, so that every rank can compute what all others hold.
template <class T>
T value(int rank, std::int64_t index) {
  std::uint64_t x = static_cast<std::uint64_t>(rank) * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(index) * 0xbf58476d1ce4e5b9u + 1;
  x ^= x >> 31;
  x *= 0x94d049bb133111ebu;
  x ^= x >> 29;
  if constexpr (std::is_same_v<T, std::int64_t>)
    return static_cast<std::int64_t>(x);
  else
    return T(static_cast<float>(static_cast<std::int32_t>(x)) * 0x1p-31f);
}

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, bf16>, float, T>;

/// The definition: terms in rank order, fp32 for bf16, the old value last.
template <class T>
T sum_of(int ranks, std::int64_t index, const T* old = nullptr) {
  if constexpr (std::is_same_v<T, std::int64_t>) {
    std::uint64_t sum = old ? static_cast<std::uint64_t>(*old) : 0;
    for (int r = 0; r < ranks; ++r) sum += static_cast<std::uint64_t>(value<T>(r, index));
    return static_cast<T>(sum);
  } else {
    Wide<T> sum = static_cast<Wide<T>>(value<T>(0, index));
    for (int r = 1; r < ranks; ++r) sum += static_cast<Wide<T>>(value<T>(r, index));
    if (old) sum += static_cast<Wide<T>>(*old);
    return T(sum);
  }
}

template <class T>
void expect_same(const T* got, const T* expected, std::int64_t n, const std::string& what) {
  for (std::int64_t i = 0; i < n; ++i)
    if (std::memcmp(&got[i], &expected[i], sizeof(T)) != 0) {
      ADD_FAILURE() << what << ": element " << i << " of " << n << " differs";
      return;
    }
}

/// Memory for the buffers of a test: each take() is a fresh piece, at an odd place.
struct Memory {
  virtual ~Memory() = default;
  virtual void* take(std::size_t bytes) = 0;
  template <class T>
  T* take(std::int64_t n) {
    return static_cast<T*>(take(static_cast<std::size_t>(n) * sizeof(T)));
  }
};

struct HeapMemory : Memory {
  std::vector<std::vector<std::int64_t>> pieces;
  void* take(std::size_t bytes) override { return pieces.emplace_back(bytes / 8 + 2).data() + 1; }
  using Memory::take;
};

template <class T>
void check_gather(Communicator& comm, Memory& memory, std::int64_t count, std::int64_t stride, bool in_place) {
  int n = comm.size(), me = comm.rank();
  std::int64_t apart = stride ? stride : count, all = apart * (n - 1) + count + 3;
  T* recv = memory.take<T>(all);
  T* send = in_place ? recv + me * apart : memory.take<T>(count);
  std::vector<T> expected(static_cast<std::size_t>(all), T(7));
  std::copy(expected.begin(), expected.end(), recv);
  for (std::int64_t i = 0; i < count; ++i) send[i] = value<T>(me, i);
  for (int r = 0; r < n; ++r)
    for (std::int64_t i = 0; i < count; ++i) expected[static_cast<std::size_t>(r * apart + i)] = value<T>(r, i);
  comm.all_gather(recv, send, count, dtype_of<T>(), stride);
  // The gaps between pieces must be untouched.
  expect_same(recv, expected.data(), all,
              fmt::format("{} all_gather of {} {} stride {}", comm.path(), count, name_of(dtype_of<T>()), stride));
}

template <class T>
void check_scatter(Communicator& comm, Memory& memory, std::int64_t count, std::int64_t stride, bool in_place, bool accumulate) {
  int n = comm.size(), me = comm.rank();
  std::int64_t apart = stride ? stride : count, all = apart * (n - 1) + count + 3;
  T* send = memory.take<T>(all);
  for (std::int64_t i = 0; i < all; ++i) send[i] = value<T>(me, i);
  T* recv = in_place ? send + me * apart : memory.take<T>(count);
  if (!in_place)
    for (std::int64_t i = 0; i < count; ++i) recv[i] = value<T>(me + 100, i);
  std::vector<T> expected;
  for (std::int64_t i = 0; i < count; ++i) expected.push_back(sum_of<T>(n, me * apart + i, accumulate ? &recv[i] : nullptr));
  comm.reduce_scatter(recv, send, count, dtype_of<T>(), stride, accumulate);
  expect_same(recv, expected.data(), count,
              fmt::format("{} reduce_scatter of {} {} stride {}{}", comm.path(), count, name_of(dtype_of<T>()), stride,
                          accumulate ? " accumulated" : ""));
}

template <class T>
void check_reduce(Communicator& comm, Memory& memory, std::int64_t count) {
  int n = comm.size(), me = comm.rank();
  T* buffer = memory.take<T>(count + 1);
  std::vector<T> sums, maxima;
  for (std::int64_t i = 0; i < count; ++i) {
    buffer[i] = value<T>(me, i);
    sums.push_back(sum_of<T>(n, i));
    T most = value<T>(0, i);
    for (int r = 1; r < n; ++r)
      if (static_cast<Wide<T>>(value<T>(r, i)) > static_cast<Wide<T>>(most)) most = value<T>(r, i);
    maxima.push_back(most);
  }
  buffer[count] = T(7);
  comm.all_reduce(buffer, count, dtype_of<T>());
  expect_same(buffer, sums.data(), count, fmt::format("{} all_reduce of {} {}", comm.path(), count, name_of(dtype_of<T>())));
  for (std::int64_t i = 0; i < count; ++i) buffer[i] = value<T>(me, i);
  comm.all_reduce(buffer, count, dtype_of<T>(), Reduction::max);
  expect_same(buffer, maxima.data(), count, fmt::format("{} maximum of {} {}", comm.path(), count, name_of(dtype_of<T>())));
  EXPECT_EQ(buffer[count], T(7));
}

template <class T>
void check_broadcast(Communicator& comm, Memory& memory, std::int64_t count, int root) {
  T* buffer = memory.take<T>(count);
  std::vector<T> expected;
  for (std::int64_t i = 0; i < count; ++i) {
    buffer[i] = value<T>(comm.rank(), i);
    expected.push_back(value<T>(root, i));
  }
  comm.broadcast(buffer, count, dtype_of<T>(), root);
  expect_same(buffer, expected.data(), count, fmt::format("{} broadcast of {} from {}", comm.path(), count, root));
}

template <class T>
void check_all(Communicator& comm, Memory& memory) {
  for (std::int64_t count : {1, 7, 255, 4097, 100003}) {
    for (std::int64_t stride : {std::int64_t{0}, count + 5}) {
      for (bool in_place : {false, true}) {
        check_gather<T>(comm, memory, count, stride, in_place);
        for (bool accumulate : {false, true}) check_scatter<T>(comm, memory, count, stride, in_place, accumulate);
      }
    }
    check_reduce<T>(comm, memory, count);
    for (int root = 0; root < comm.size(); ++root) check_broadcast<T>(comm, memory, count, root);
  }
  comm.barrier();
}

void check_types(Communicator& comm, Memory& memory) {
  check_all<float>(comm, memory);
  check_all<bf16>(comm, memory);
  check_all<std::int64_t>(comm, memory);
}

TEST(MpiCommunicator, EveryCollectiveIsItsDefinition) {
  auto comm = make_communicator(world(), all_dp(), Axis::dp, {.path = CommunicatorPath::mpi});
  EXPECT_EQ(comm->path(), "mpi");
  EXPECT_EQ(comm->size(), world().ranks());
  EXPECT_EQ(comm->rank(), world().rank());
  HeapMemory memory;
  check_types(*comm, memory);
}

TEST(MpiCommunicator, AnAxisOfOneRankIsItself) {
  auto comm = make_communicator(world(), all_dp(), Axis::tp, {.path = CommunicatorPath::mpi});
  EXPECT_EQ(comm->size(), 1);
  HeapMemory memory;
  check_types(*comm, memory);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::testing::run_tests(argc, argv); }
