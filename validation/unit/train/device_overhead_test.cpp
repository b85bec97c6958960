#include "train/engine/device_overhead.hpp"

#include <gtest/gtest.h>

namespace tessera::device_overhead_test {
namespace {

TEST(DeviceOverhead, CountsWhatIsNotPlanned) {
  std::int64_t used = 512ll << 20;
  DeviceOverhead overhead([&] { return used; });
  overhead.count("CUDA context");
  used += 96ll << 20;
  overhead.count("NCCL");
  used += (7ll << 30) + (300ll << 20);
  overhead.count("libraries", 7ll << 30);
  used += 8ll << 20;
  overhead.count("first step");
  EXPECT_EQ(overhead.text(), "CUDA context 512.00 MiB, NCCL 96.00 MiB, libraries 300.00 MiB, first step 8.00 MiB: 916.00 MiB");
}

TEST(DeviceOverhead, WhatOthersGaveBackIsNotNegative) {
  std::int64_t used = 100;
  DeviceOverhead overhead([&] { return used; });
  overhead.count("CUDA context");
  used = 40;
  overhead.count("NCCL");
  used = 50;
  overhead.count("first step");
  EXPECT_EQ(overhead.text(), "CUDA context 100 B, NCCL 0 B, first step 10 B: 110 B");
}

}  // namespace
}  // namespace tessera::device_overhead_test
