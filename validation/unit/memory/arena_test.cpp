// Arenas: aligned, zeroed, moved without a copy, refused where the node has too little.
#include "memory/arena.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.hpp"
#include "memory/runtime.hpp"

namespace tessera::arena_test {
namespace {

class ArenaOf : public testing::TestWithParam<Tier> {};

TEST_P(ArenaOf, IsAlignedAndZero) {
  for (std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{3} << 20, (std::size_t{2} << 20) + 5}) {
    const Arena arena(GetParam(), bytes, "test");
    EXPECT_EQ(arena.bytes(), bytes);
    EXPECT_EQ(arena.tier(), GetParam());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.data()) % 4096, 0u);
    EXPECT_TRUE(std::all_of(arena.data(), arena.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
    std::fill_n(arena.data(), bytes, std::byte{7});  // the sanitizers watch the last byte
  }
}

TEST_P(ArenaOf, MovesWithoutACopy) {
  Arena a(GetParam(), 8192, "a");
  std::byte* const place = a.data();
  a.data()[8191] = std::byte{9};
  Arena b(std::move(a));
  EXPECT_EQ(b.data(), place);
  EXPECT_EQ(b.data()[8191], std::byte{9});
  Arena c(GetParam(), 4096, "c");
  c = std::move(b);
  EXPECT_EQ(c.data(), place);
  EXPECT_EQ(c.bytes(), 8192u);
}

TEST_P(ArenaOf, TooLargeIsRefusedBeforeItIsTouched) {
  try {
    const Arena arena(GetParam(), node_memory().total + (std::size_t{1} << 30), "large");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ExitCode::memory);
    EXPECT_NE(std::string(e.what()).find("zero.stage"), std::string::npos) << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, ArenaOf, testing::Values(Tier::host, Tier::shared),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// As on a virtual machine that has less memory now than it will have when the pages are used.
TEST(Arena, MemoryForLaterNeedNotBeThereNow) {
  const std::size_t bytes = node_memory().total + (std::size_t{8} << 30);
  Arena arena(Tier::host, bytes, "later", FirstTouch::when_used);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.data()) % 4096, 0u);
  arena.data()[0] = arena.data()[bytes - 1] = std::byte{9};
  const Arena moved(std::move(arena));
  EXPECT_EQ(moved.data()[bytes - 1], std::byte{9});
}

TEST(Arena, WhatTheSystemRefusesIsNamed) {
  try {
    const Arena arena(Tier::host, std::size_t{1} << 60, "huge", FirstTouch::when_used);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ExitCode::memory);
    EXPECT_NE(std::string(e.what()).find("of host memory could not be allocated"), std::string::npos) << e.what();
  }
}

TEST(Arena, EmptyHoldsNothing) {
  const Arena arena(Tier::host, 0, "none");
  EXPECT_EQ(arena.data(), nullptr);
  EXPECT_EQ(arena.descriptor(), -1);
}

TEST(Arena, SharedMemoryIsSeenThroughItsDescriptor) {
  Arena arena(Tier::shared, 4096, "shared");
  ASSERT_GE(arena.descriptor(), 0);
  void* other = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, arena.descriptor(), 0);
  ASSERT_NE(other, MAP_FAILED);
  arena.data()[100] = std::byte{42};
  EXPECT_EQ(static_cast<std::byte*>(other)[100], std::byte{42});
  munmap(other, 4096);
}

TEST(Arena, TiersWithoutMemoryAreRefused) { EXPECT_THROW(Arena(Tier::nvme, 4096, "nvme"), Error); }

TEST(NodeMemory, FreeIsPartOfAll) {
  const NodeMemory memory = node_memory();
  EXPECT_GT(memory.available, 0u);
  EXPECT_LE(memory.available, memory.total);
}

}  // namespace
}  // namespace tessera::arena_test
