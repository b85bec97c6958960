// The pretended link of zeropp_benchmark: bytes from other nodes take their time, and nothing else changes.
#include "validation/benchmarks/slow_link.hpp"

#include <gtest/gtest.h>

#include "base/clock.hpp"
#include "topology/communicators/make_communicator.hpp"
#include "world_main.hpp"

namespace tessera {
namespace {

using testing::world;

Group everyone() { return group_of({{1, 1, world().ranks(), 1, 1, 1}}, data_axes, world().rank()); }

constexpr double rate = 2e6;
constexpr std::int64_t count = 10000;  // 40 kB a rank: 20 ms

struct Timed {
  double seconds, bytes;
};

/// Of a group whose ranks are on nodes of so many.
template <class Call>
Timed timed(int ranks_per_node, const Call& call) {
  benchmarks::SlowLink link(rate);
  benchmarks::SlowCommunicator slow(make_communicator(world(), everyone()), everyone(), ranks_per_node, link);
  slow.barrier();
  const double begin = now_seconds();
  call(slow);
  return {now_seconds() - begin, link.take_bytes()};
}

TEST(SlowLink, BytesFromOtherNodesTakeTheirTime) {
  const auto ranks = static_cast<std::size_t>(world().ranks());
  std::vector<float> mine(ranks * count, static_cast<float>(world().rank())), all(ranks * count);
  for (const int of_node : {1, 2}) {
    const int node = world().rank() / of_node, here = std::min(of_node, world().ranks() - node * of_node);
    const double elsewhere = world().ranks() - here, block = 4.0 * count;
    const auto expect = [&](const char* what, double bytes, const Timed& took) {
      EXPECT_DOUBLE_EQ(took.bytes, bytes) << what;
      EXPECT_GE(took.seconds, bytes / rate) << what;
    };
    expect("all_gather", elsewhere * block,
           timed(of_node, [&](Communicator& c) { c.all_gather(all.data(), mine.data(), count, DType::f32); }));
    for (std::size_t r = 0; r < ranks; ++r) EXPECT_EQ(all[r * count + 5], static_cast<float>(r));
    expect("reduce_scatter", elsewhere * block,
           timed(of_node, [&](Communicator& c) { c.reduce_scatter(all.data(), mine.data(), count, DType::f32); }));
    expect("all_to_all", elsewhere * block,
           timed(of_node, [&](Communicator& c) { c.all_to_all(all.data(), mine.data(), count, DType::f32); }));
    expect("all_reduce", 2 * elsewhere * block / world().ranks(),
           timed(of_node, [&](Communicator& c) { c.all_reduce(all.data(), count, DType::f32); }));
    expect("two in turn", 2 * elsewhere * block, timed(of_node, [&](Communicator& c) {
             for (int i = 0; i < 2; ++i) c.all_gather(all.data(), mine.data(), count, DType::f32);
           }));
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::testing::run_tests(argc, argv); }
