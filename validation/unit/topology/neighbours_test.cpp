#include "topology/neighbours.hpp"

#include <algorithm>
#include <cstring>
#include <future>
#include <optional>
#include <random>

#include "world_main.hpp"

namespace tessera {
namespace {

using testing::world;

TEST(Neighbours, EachRankIsKeptOnAnotherNodeWhereThatCanBe) {
  std::mt19937 draw(3);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<int> nodes;
    const int count = 1 + static_cast<int>(draw() % 6);
    for (int node = 0; node < count; ++node) nodes.insert(nodes.end(), 1 + draw() % 5, node);
    if (trial % 2 == 1) std::ranges::shuffle(nodes, draw);
    const std::vector<int> keepers = keepers_of(nodes);
    std::vector<int> kept = keepers;
    std::ranges::sort(kept);
    for (std::size_t r = 0; r < nodes.size(); ++r) EXPECT_EQ(kept[r], static_cast<int>(r)) << "each keeps one other's";
    std::vector<std::size_t> on(static_cast<std::size_t>(count));
    for (const int node : nodes) ++on[static_cast<std::size_t>(node)];
    if (2 * std::ranges::max(on) > nodes.size()) continue;
    for (std::size_t r = 0; r < nodes.size(); ++r)
      EXPECT_NE(nodes[r], nodes[static_cast<std::size_t>(keepers[r])]) << "rank " << r << " of " << nodes.size();
  }
}

std::vector<std::byte> bytes_of(int rank) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(rank) * 1300000 + 7);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + static_cast<std::size_t>(rank));
  return bytes;
}

struct Sent {
  explicit Sent(int rank) : bytes(bytes_of(rank)) {}
  Outgoing outgoing() {
    return {.bytes = std::ssize(bytes),
            .read = [this](std::int64_t at, std::span<std::byte> out) { std::memcpy(out.data(), bytes.data() + at, out.size()); }};
  }
  std::vector<std::byte> bytes;
};
struct Received {
  Incoming incoming() {
    return {
        .begin =
            [this](std::int64_t coming) { bytes.resize(static_cast<std::size_t>(std::max<std::int64_t>(coming, 0))), none = coming < 0; },
        .write = [this](std::int64_t at, std::span<const std::byte> piece) { std::memcpy(bytes.data() + at, piece.data(), piece.size()); },
        .end = [this] { ended = true; }};
  }
  std::vector<std::byte> bytes;
  bool none = false, ended = false;
};

TEST(Neighbours, BytesPassAndOneThatHasNoneHoldsNobodyUp) {
  Neighbours neighbours(world());
  EXPECT_EQ(neighbours.on_other_nodes(), world().place().nodes > 1 && 2 * world().place().local_ranks <= world().ranks());
  for (const int without : {-1, 0}) {
    Sent mine(world().rank());
    Received theirs;
    neighbours.pass(without == world().rank() ? Outgoing() : mine.outgoing(), theirs.incoming());
    EXPECT_TRUE(theirs.ended);
    EXPECT_EQ(theirs.none, without == neighbours.kept());
    if (!theirs.none) {
      EXPECT_EQ(theirs.bytes, bytes_of(neighbours.kept()));
    }
  }
  // Where what is read or written fails, the others do not wait.
  Sent mine(world().rank());
  Received theirs;
  Incoming fails = theirs.incoming();
  if (world().rank() == 0) fails.write = [](std::int64_t, std::span<const std::byte>) { fail(ExitCode::storage, "the memory is full"); };
  if (world().rank() == 0)
    EXPECT_THROW(neighbours.pass(mine.outgoing(), fails), Error);
  else
    neighbours.pass(mine.outgoing(), fails);
  world().barrier();
}

TEST(Neighbours, TransfersGoInTheirOrderAndAFaultIsToldAtTheEnd) {
  if (world().ranks() == 1) GTEST_SKIP() << "nobody to carry to";
  Neighbours neighbours(world());
  const int last = world().ranks() - 1;
  const std::vector<Neighbours::Transfer> transfers{{0, last}, {last, 0}, {0, last}};
  Sent mine(world().rank());
  std::vector<Received> received(3);
  const auto outgoing = [&](std::size_t k) {
    if (k == 1) fail(ExitCode::checkpoint, "cannot be read");
    return mine.outgoing();
  };
  const auto incoming = [&](std::size_t k) { return received[k].incoming(); };
  if (world().rank() == last)
    EXPECT_THROW(neighbours.carry(transfers, outgoing, incoming), Error);
  else
    neighbours.carry(transfers, outgoing, incoming);
  if (world().rank() == last) {
    EXPECT_EQ(received[0].bytes, bytes_of(0));
    EXPECT_EQ(received[2].bytes, bytes_of(0));
  }
  if (world().rank() == 0) {
    EXPECT_TRUE(received[1].none);
  }
  world().barrier();
}

TEST(Neighbours, MemoryOfAMessageThatIsGivenUpStaysWhereItMayStillArrive) {
  if (world().ranks() == 1) GTEST_SKIP() << "nobody to carry to";
  std::optional<Neighbours> neighbours(world());
  const int rank = world().rank(), last = world().ranks() - 1;
  const std::vector<Neighbours::Transfer> transfer{{last, 0}};
  const std::byte* arrived = nullptr;
  std::promise<void> comes;
  bool given_up = false;
  const auto outgoing = [&](std::byte value) {
    return [&, value](std::size_t) {
      return Outgoing{.bytes = 1 << 20, .read = [&, value](std::int64_t, std::span<std::byte> out) {
                        if (given_up) world().barrier();
                        std::memset(out.data(), static_cast<int>(value), out.size());
                      }};
    };
  };
  const auto incoming = [&](std::size_t) {
    return Incoming{.begin =
                        [&](std::int64_t) {
                          if (given_up) comes.set_value();
                        },
                    .write = [&](std::int64_t, std::span<const std::byte> piece) { arrived = piece.data(); },
                    .end = [] {}};
  };
  neighbours->carry(transfer, outgoing(std::byte{1}), incoming);
  given_up = true;
  if (rank == 0) {
    auto carrying = std::async(std::launch::async, [&] { neighbours->carry(transfer, outgoing(std::byte{2}), incoming); });
    comes.get_future().wait();  // the sender has told how many bytes it sends, and sends none before the barrier
    neighbours->abort();
    EXPECT_THROW(carrying.get(), Error);
    EXPECT_THROW(neighbours->carry(transfer, outgoing(std::byte{3}), incoming), Error) << "none goes on";
    neighbours.reset();
    const std::vector<std::byte> others(1 << 20, std::byte{9});  // who takes what is free now
    world().barrier();
    world().barrier();
    EXPECT_EQ(others, std::vector<std::byte>(1 << 20, std::byte{9}));
    EXPECT_EQ(arrived[0], std::byte{2});
    EXPECT_EQ(arrived[(1 << 20) - 1], std::byte{2});
  } else {
    if (rank != last) world().barrier();
    neighbours->carry(transfer, outgoing(std::byte{2}), incoming);
    world().barrier();
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::testing::run_tests(argc, argv); }
