// Every collective on every path against sums computed here, over types, odd counts, strides, in place, accumulation and kinds of memory.
#include "topology/communicators/communicator.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "../sample.hpp"
#include "memory/arena.hpp"
#include "topology/communicators/make_communicator.hpp"
#include "topology/communicators/mpi_types.hpp"
#include "topology/node.hpp"
#include "world_main.hpp"

/// Requests of a collective that was given up can never be freed.
extern "C" const char* __lsan_default_suppressions() { return "leak:libmpich\n"; }  // NOLINT

namespace tessera {
namespace {

using testing::world;

/// All ranks.
Group all_dp() { return group_of({{1, 1, world().ranks(), 1, 1, 1}}, data_axes, world().rank()); }

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
using Wide = std::conditional_t<sizeof(T) == 2, float, T>;

/// The definition: terms in rank order, fp32 for bf16 and fp16, the old value last.
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

/// Pieces of a registered arena: the peers read them where they lie.
struct ArenaMemory : Memory {
  Node& node;
  Arena arena;
  std::size_t used = 0;
  explicit ArenaMemory(Node& node, std::size_t bytes = std::size_t{64} << 20) : node(node), arena(Tier::shared, bytes, "test") {
    node.register_arena(arena);
    EXPECT_EQ(node.locate(arena.data(), bytes).has_value(), node.direct());
  }
  ~ArenaMemory() override { node.unregister_arena(arena); }
  void* take(std::size_t bytes) override {
    // Ranks place their pieces differently; an old piece is overwritten, which no peer may still be reading.
    if (used + bytes + 64 > arena.bytes()) used = 0;
    void* piece = arena.data() + used + 8;
    used += (bytes + 8 + 7) / 8 * 8 + 8 * static_cast<std::size_t>(world().rank());
    return piece;
  }
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
void check_exchange(Communicator& comm, Memory& memory, std::int64_t count, std::int64_t times) {
  const int n = comm.size(), me = comm.rank();
  const std::int64_t all = times * n * count;
  T *send = memory.take<T>(all), *recv = memory.take<T>(all + 3);
  std::vector<T> expected(static_cast<std::size_t>(all + 3), T(7));
  std::copy(expected.begin(), expected.end(), recv);
  for (std::int64_t i = 0; i < all; ++i) send[i] = value<T>(me, i);
  for (std::int64_t k = 0; k < times; ++k)
    for (int r = 0; r < n; ++r)
      for (std::int64_t i = 0; i < count; ++i)
        expected[static_cast<std::size_t>((k * n + r) * count + i)] = value<T>(r, (k * n + me) * count + i);
  comm.all_to_all(recv, send, count, dtype_of<T>(), times);
  expect_same(recv, expected.data(), all + 3,
              fmt::format("{} all_to_all of {} {} x {}", comm.path(), count, name_of(dtype_of<T>()), times));
}

template <class T>
void check_rotate(Communicator& comm, Memory& memory, std::int64_t count, int by = 1) {
  const int before = (comm.rank() + comm.size() - by) % comm.size();
  T *send = memory.take<T>(count), *recv = memory.take<T>(count + 3);
  std::vector<T> expected(static_cast<std::size_t>(count + 3), T(7));
  std::copy(expected.begin(), expected.end(), recv);
  for (std::int64_t i = 0; i < count; ++i) send[i] = value<T>(comm.rank(), i), expected[static_cast<std::size_t>(i)] = value<T>(before, i);
  comm.rotate(recv, send, count, dtype_of<T>(), by);
  expect_same(recv, expected.data(), count + 3, fmt::format("{} rotate of {} {} by {}", comm.path(), count, name_of(dtype_of<T>()), by));
  // What came goes on: after as many turns as there are ranks everything is at home again.
  for (int turn = 1; turn < comm.size(); ++turn) {
    T* next = memory.take<T>(count);
    comm.rotate(next, recv, count, dtype_of<T>(), by);
    recv = next;
  }
  for (std::int64_t i = 0; i < count; ++i) expected[static_cast<std::size_t>(i)] = value<T>(comm.rank(), i);
  expect_same(recv, expected.data(), count, fmt::format("{} rotate of {} all round", comm.path(), count));
}

/// The largest count always, which is cut into pieces, at half of its strides and places, and a third of the others.
template <class T>
void check_all(Communicator& comm, Memory& memory) {
  constexpr std::int64_t largest = 50021;
  for (std::int64_t count : {std::int64_t{1}, std::int64_t{7}, std::int64_t{255}, std::int64_t{4097}, largest}) {
    const std::string name = fmt::format("{} {} {}", comm.path(), name_of(dtype_of<T>()), count);
    if (count != largest && !test::Sample::takes(name, 3)) continue;
    for (std::int64_t stride : {std::int64_t{0}, count + 5}) {
      for (bool in_place : {false, true}) {
        if (count == largest && !test::Sample::takes(fmt::format("{} {} {}", name, stride, in_place), 2)) continue;
        check_gather<T>(comm, memory, count, stride, in_place);
        for (bool accumulate : {false, true}) check_scatter<T>(comm, memory, count, stride, in_place, accumulate);
      }
    }
    check_reduce<T>(comm, memory, count);
    for (std::int64_t times : {1, 3}) check_exchange<T>(comm, memory, count, times);
    for (int by = 1; by < comm.size() || by == 1; ++by) check_rotate<T>(comm, memory, count, by);
    for (int root = 0; root < comm.size(); ++root) check_broadcast<T>(comm, memory, count, root);
  }
  comm.barrier();
}

void check_types(Communicator& comm, Memory& memory) {
  SCOPED_TRACE(test::Sample::describe());
  check_all<float>(comm, memory);
  check_all<bf16>(comm, memory);
  check_all<f16>(comm, memory);
  check_all<std::int64_t>(comm, memory);
  // Large enough to be streamed past the caches.
  constexpr std::int64_t streamed = 300007;
  const auto takes = [&](std::string_view what) { return test::Sample::takes(fmt::format("{} streamed {}", comm.path(), what), 3); };
  if (takes("gather")) check_gather<float>(comm, memory, streamed, streamed + 4, false);
  if (takes("exchange")) check_exchange<float>(comm, memory, streamed, 2);
  if (takes("rotate")) check_rotate<float>(comm, memory, streamed);
  if (takes("scatter")) check_scatter<float>(comm, memory, streamed, streamed + 4, false, false);
  if (takes("scatter in place")) check_scatter<float>(comm, memory, streamed, streamed + 4, true, true);
  if (takes("reduce")) check_reduce<float>(comm, memory, streamed * comm.size());
}

TEST(MpiCommunicator, EveryCollectiveIsItsDefinition) {
  auto comm = make_communicator(world(), all_dp(), {.path = CommunicatorPath::mpi});
  EXPECT_EQ(comm->path(), "mpi");
  EXPECT_EQ(comm->size(), world().ranks());
  EXPECT_EQ(comm->rank(), world().rank());
  HeapMemory memory;
  check_types(*comm, memory);
}

TEST(MpiCommunicator, AnAxisOfOneRankIsItself) {
  auto comm = make_communicator(world(), group_of({{1, 1, world().ranks(), 1, 1, 1}}, axes({Axis::tp}), world().rank()),
                                {.path = CommunicatorPath::mpi});
  EXPECT_EQ(comm->size(), 1);
  HeapMemory memory;
  check_types(*comm, memory);
}

TEST(LocalCommunicator, AnAxisOfOneRankNeedsNobody) {
  auto comm = make_communicator(world(), group_of({{1, 1, world().ranks(), 1, 1, 1}}, axes({Axis::pp}), world().rank()));
  EXPECT_EQ(comm->path(), "one rank");
  HeapMemory memory;
  check_types(*comm, memory);
}

TEST(SharedCommunicator, EveryCollectiveIsItsDefinitionInAnyMemory) {
  if (world().ranks() == 1 || world().place().nodes > 1) GTEST_SKIP() << "needs several ranks on one node";
  Node node(world());
  auto comm = make_communicator(world(), all_dp(), {.node = &node});
  EXPECT_EQ(comm->path(), "shared memory");
  HeapMemory heap;
  check_types(*comm, heap);
  ArenaMemory arena(node);
  check_types(*comm, arena);
  // Some ranks' buffers are registered, others' are not.
  if (world().rank() == 0)
    check_types(*comm, heap);
  else
    check_types(*comm, arena);
}

TEST(SharedCommunicator, WorksWhereProcessesMayNotOpenEachOthersMemory) {
  if (world().ranks() == 1 || world().place().nodes > 1) GTEST_SKIP() << "needs several ranks on one node";
  Node node(world(), {.direct = false});
  auto comm = make_communicator(world(), all_dp(), {.node = &node});
  EXPECT_EQ(comm->path(), "shared memory");
  ArenaMemory arena(node);
  check_types(*comm, arena);
}

TEST(SharedCommunicator, AnArenaThatIsNotSharedGoesThroughTheWindow) {
  if (world().ranks() == 1 || world().place().nodes > 1) GTEST_SKIP() << "needs several ranks on one node";
  Node node(world());
  auto comm = make_communicator(world(), all_dp(), {.node = &node});
  Arena arena(world().rank() == 0 ? Tier::host : Tier::shared, 1 << 20, "test");
  node.register_arena(arena);
  EXPECT_FALSE(node.locate(arena.data(), 4).has_value());
  auto* values = reinterpret_cast<std::int64_t*>(arena.data());
  constexpr std::int64_t count = 100000;
  std::fill_n(values, count, world().rank() + 1);
  comm->all_reduce(values, count, DType::i64);
  EXPECT_EQ(values[count - 1], world().ranks() * (world().ranks() + 1) / 2);
  node.unregister_arena(arena);
  EXPECT_THROW(node.unregister_arena(arena), Error);
}

TEST(SharedCommunicator, LocationsEndWithTheArena) {
  Node node(world());
  Arena arena(Tier::shared, 1 << 16, "test");
  EXPECT_FALSE(node.locate(arena.data(), 1));
  node.register_arena(arena);
  EXPECT_TRUE(node.locate(arena.data(), arena.bytes()));
  EXPECT_TRUE(node.locate(arena.data() + arena.bytes() - 1, 1));
  EXPECT_FALSE(node.locate(arena.data() + 1, arena.bytes()));
  EXPECT_FALSE(node.locate(arena.data() - 1, 2));
  node.unregister_arena(arena);
  EXPECT_FALSE(node.locate(arena.data(), 1));
}

/// Many small and some large calls on `comm`; returns whether all sums were right.
bool hammer(Communicator& comm, Memory& memory, int seed) {
  constexpr std::int64_t large = 50000;
  auto* values = memory.take<std::int64_t>(large);
  std::int64_t terms = comm.size() * (comm.size() - 1) / 2;
  bool good = true;
  for (int call = 0; call < 60; ++call) {
    std::int64_t count = call % 10 == 0 ? large : 1 + call;
    for (std::int64_t i = 0; i < count; ++i) values[i] = comm.rank() + seed * call + i;
    comm.all_reduce(values, count, DType::i64);
    for (std::int64_t i = 0; i < count; ++i) good = good && values[i] == terms + comm.size() * (seed * call + i);
  }
  return good;
}

TEST(Communicators, OfTwoLanesWorkAtTheSameTime) {
  Node node(world());
  bool one_node = world().place().nodes == 1;
  for (auto path : {CommunicatorPath::fastest, CommunicatorPath::mpi}) {
    auto gather = make_communicator(world(), all_dp(), {.lane = "gather", .node = &node, .path = path});
    auto reduce = make_communicator(world(), all_dp(), {.lane = "reduce", .node = &node, .path = path});
    if (path == CommunicatorPath::fastest && one_node && world().ranks() > 1) {
      EXPECT_EQ(gather->path(), "shared memory");
    }
    ArenaMemory memory(node);
    HeapMemory heap;
    bool other_good = false;
    std::thread other([&] { other_good = hammer(*gather, heap, 3); });
    bool good = hammer(*reduce, memory, 5);
    other.join();
    EXPECT_TRUE(good) << reduce->path();
    EXPECT_TRUE(other_good) << gather->path();
  }
}

/// Runs with TESSERA_RANKS_PER_NODE.
bool over_equal_nodes() {
  const int nodes = world().place().nodes;
  return nodes > 1 && world().ranks() > nodes && world().ranks() % nodes == 0;
}

TEST(HierarchicalCommunicator, EveryCollectiveIsItsDefinitionInAnyMemory) {
  if (!over_equal_nodes()) GTEST_SKIP() << "needs several nodes of several ranks";
  Node node(world());
  auto comm = make_communicator(world(), all_dp(), {.node = &node});
  EXPECT_EQ(comm->path(), fmt::format("shared memory inside {} nodes, mpi between", world().place().nodes));
  HeapMemory heap;
  check_types(*comm, heap);
  ArenaMemory arena(node);
  check_types(*comm, arena);
  // Nodes, and ranks of a node, need not agree on where their buffers lie.
  if (world().rank() < 3)
    check_types(*comm, heap);
  else
    check_types(*comm, arena);
}

TEST(HierarchicalCommunicator, SumsInPieces) {
  if (!over_equal_nodes()) GTEST_SKIP() << "needs several nodes of several ranks";
  Node node(world());
  auto comm = make_communicator(world(), all_dp(), {.node = &node});
  ArenaMemory arena(node);
  HeapMemory heap;
  for (Memory* memory : {static_cast<Memory*>(&arena), static_cast<Memory*>(&heap)}) {
    for (bool in_place : {false, true}) {
      check_scatter<bf16>(*comm, *memory, 200003, 200019, in_place, true);
      check_scatter<std::int64_t>(*comm, *memory, 50021, 0, in_place, false);
      check_gather<bf16>(*comm, *memory, 1500007, 0, in_place);
    }
    check_reduce<bf16>(*comm, *memory, 1500007);
    check_reduce<f16>(*comm, *memory, 300007);
    check_reduce<std::int64_t>(*comm, *memory, 300007);
  }
}

TEST(HierarchicalCommunicator, WorksWhereProcessesMayNotOpenEachOthersMemory) {
  if (!over_equal_nodes()) GTEST_SKIP() << "needs several nodes of several ranks";
  Node node(world(), {.direct = false});
  auto comm = make_communicator(world(), all_dp(), {.node = &node});
  ArenaMemory arena(node);
  check_types(*comm, arena);
}

TEST(HierarchicalCommunicator, CanBeForbidden) {
  if (!over_equal_nodes()) GTEST_SKIP() << "needs several nodes of several ranks";
  Node node(world());
  EXPECT_EQ(make_communicator(world(), all_dp(), {.node = &node, .hierarchical = false})->path(), "mpi");
}

TEST(HierarchicalCommunicator, NodesOfUnequalNumbersUseMpi) {
  if (world().place().nodes == 1 || over_equal_nodes()) GTEST_SKIP() << "needs unequal nodes";
  Node node(world());
  auto comm = make_communicator(world(), all_dp(), {.node = &node});
  EXPECT_EQ(comm->path(), "mpi");
  HeapMemory heap;
  check_all<float>(*comm, heap);
}

TEST(HierarchicalCommunicator, AWaitThatIsGivenUpEnds) {
  if (!over_equal_nodes()) GTEST_SKIP() << "needs several nodes of several ranks";
  Node node(world());
  auto comm = make_communicator(world(), all_dp(), {.node = &node});
  std::vector<float> values(100000);
  if (world().rank() == 0) {  // comes never; the others are told by their own lanes
    world().barrier();
    return;
  }
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    comm->abort();
  });
  EXPECT_THROW(comm->all_reduce(values.data(), 100000, DType::f32), Error);
  other.join();
  world().barrier();
}

TEST(MpiTypes, AreAsLargeAsElementsAndOfKnownTypesAlone) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::i64, DType::u16, DType::u32}) {
    int bytes = 0;
    MPI_CHECK(MPI_Type_size(mpi_type(type), &bytes));
    EXPECT_EQ(static_cast<std::size_t>(bytes), size_of(type)) << name_of(type);
  }
  EXPECT_THROW(mpi_type(static_cast<DType>(9)), Error);
}

TEST(Communicators, AlongDifferentAxesStayApart) {
  if (world().ranks() != 4) GTEST_SKIP() << "needs 4 ranks";
  Node node(world());
  Mesh mesh{{1, 1, 2, 1, 1, 2}};
  auto dp = make_communicator(world(), group_of(mesh, axes({Axis::dp}), world().rank()), {.node = &node});
  auto tp = make_communicator(world(), group_of(mesh, axes({Axis::tp}), world().rank()), {.node = &node});
  std::int64_t over_dp = world().rank(), over_tp = world().rank();
  dp->all_reduce(&over_dp, 1, DType::i64);
  tp->all_reduce(&over_tp, 1, DType::i64);
  EXPECT_EQ(over_dp, world().rank() % 2 == 0 ? 0 + 2 : 1 + 3);
  EXPECT_EQ(over_tp, world().rank() < 2 ? 0 + 1 : 2 + 3);
  EXPECT_EQ(dp->rank(), world().rank() / 2);
  EXPECT_EQ(tp->rank(), world().rank() % 2);
}

/// What every rank has travels to the next one, both ways at the same time: each rank has a communicator with either neighbour and
/// direction.
TEST(Communicators, NeighboursSendAndReceiveInBothDirections) {
  if (world().ranks() == 1) GTEST_SKIP() << "needs several ranks";
  Node node(world());
  const int me = world().rank(), last = world().ranks() - 1;
  for (auto path : {CommunicatorPath::fastest, CommunicatorPath::mpi}) {
    const auto link = [&](int peer, const char* lane) {
      const auto [low, high] = std::minmax({me, peer});
      const Group pair{.axes = axes({Axis::pp}), .rank = me == high, .size = 2, .world = {low, high}};
      return make_communicator(world(), pair, {.lane = lane, .node = &node, .path = path});
    };
    std::unique_ptr<Communicator> up_in, up_out, down_in, down_out;
    if (me > 0) up_in = link(me - 1, "up");
    if (me < last) up_out = link(me + 1, "up");
    if (me > 0) down_out = link(me - 1, "down");
    if (me < last) down_in = link(me + 1, "down");
    ArenaMemory arena(node);
    HeapMemory heap;
    // A lane: what comes from one neighbour goes on to the other, with this rank's own added.
    const auto lane = [&](Communicator* in, Communicator* out, Memory& memory, int begin, bool& good) {
      for (const std::int64_t count : {1, 4097, 100001}) {
        float* values = memory.take<float>(count);
        std::fill_n(values, count, 0.0f);
        if (in) in->receive(values, count, DType::f32);
        const int before = std::abs(me - begin);
        for (std::int64_t i = 0; i < count; ++i) good = good && values[i] == static_cast<float>(before * (i % 7 + 1));
        for (std::int64_t i = 0; i < count; ++i) values[i] += static_cast<float>(i % 7 + 1);
        if (out) out->send(values, count, DType::f32);
      }
    };
    bool up_good = true, down_good = true;
    std::thread up([&] { lane(up_in.get(), up_out.get(), arena, 0, up_good); });
    lane(down_in.get(), down_out.get(), heap, last, down_good);
    up.join();
    EXPECT_TRUE(up_good);
    EXPECT_TRUE(down_good);
  }
}

TEST(Communicators, AMaximumKeepsNaN) {
  Node node(world());
  for (auto path : {CommunicatorPath::fastest, CommunicatorPath::mpi}) {
    auto comm = make_communicator(world(), all_dp(), {.node = &node, .path = path});
    float value = world().rank() == world().ranks() - 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
    comm->all_reduce(&value, 1, DType::f32, Reduction::max);
    EXPECT_TRUE(std::isnan(value)) << comm->path();
  }
}

TEST(SharedCommunicator, RanksThatCallDifferentThingsAreRefused) {
  if (world().ranks() == 1 || world().place().nodes > 1) GTEST_SKIP() << "needs several ranks on one node";
  Node node(world());
  auto comm = make_communicator(world(), all_dp(), {.lane = "reduce", .node = &node});
  float values[8] = {};
  try {
    comm->all_reduce(values, world().rank() == 0 ? 7 : 8, DType::f32);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    std::string what = error.what();
    EXPECT_NE(what.find("lane reduce"), std::string::npos) << what;
    EXPECT_NE(what.find("all_reduce of 7 fp32"), std::string::npos) << what;
    EXPECT_NE(what.find("all_reduce of 8 fp32"), std::string::npos) << what;
  }
}

TEST(Communicators, AWaitIsGivenUpAtOnceWhenItIsAborted) {
  if (world().ranks() == 1 || world().place().nodes > 1) GTEST_SKIP() << "needs several ranks on one node";
  Node node(world());
  const int last = world().ranks() - 1;
  for (auto path : {CommunicatorPath::fastest, CommunicatorPath::mpi}) {
    auto comm = make_communicator(world(), all_dp(), {.lane = "gather", .node = &node, .path = path});
    if (world().rank() != last) {
      std::thread failing_lane([&] { comm->abort(); });
      try {
        comm->barrier();
        ADD_FAILURE() << "the barrier passed";
      } catch (const Error& error) {
        EXPECT_EQ(error.code, ExitCode::lost);
        EXPECT_NE(std::string(error.what()).find("another lane of this rank has failed"), std::string::npos) << error.what();
      }
      failing_lane.join();
    }
    world().barrier();
    // Leave MPI's barrier complete, or it would stay open under the end of the run.
    if (path == CommunicatorPath::mpi && world().rank() == last) comm->barrier();
  }
}

TEST(Communicators, AWaitEndsAndNamesWhoIsMissing) {
  if (world().ranks() == 1 || world().place().nodes > 1) GTEST_SKIP() << "needs several ranks on one node";
  Node node(world());
  int last = world().ranks() - 1;
  for (auto path : {CommunicatorPath::fastest, CommunicatorPath::mpi}) {
    auto comm = make_communicator(world(), all_dp(), {.lane = "gather", .node = &node, .path = path, .timeout_seconds = 2});
    if (world().rank() != last) {
      try {
        comm->barrier();
        ADD_FAILURE() << "the barrier passed";
      } catch (const Error& error) {
        std::string what = error.what();
        EXPECT_NE(what.find("barrier"), std::string::npos) << what;
        EXPECT_NE(what.find("lane gather"), std::string::npos) << what;
        if (path == CommunicatorPath::fastest) {
          // On a busy machine others may have been late too: the last one is named behind them.
          EXPECT_NE(what.find(fmt::format("{} did not arrive", last)), std::string::npos) << what;
        }
      }
    }
    world().barrier();
    // Leave MPI's barrier complete, or it would stay open under the end of the run.
    if (path == CommunicatorPath::mpi && world().rank() == last) comm->barrier();
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::testing::run_tests(argc, argv); }
