// tessera consolidate: what it prints, and that its memory does not grow with the model.
#include <gtest/gtest.h>

#include "../model/random_models.hpp"
#include "../sharded_checkpoint.hpp"
#include "program.hpp"

namespace tessera {
namespace {

TEST(ConsolidateCommand, SaysWhatItWrote) {
  const test::Scratch scratch;
  const std::string folder = test::write_sharded(scratch.path(), test::tiny_deck(), 2);
  const auto done = test::run_program(scratch, {"consolidate", folder, scratch / "out", "--dtype", "bf16"});
  EXPECT_EQ(done.status, 0) << done.err;
  for (const char* part : {"21 tensors", "model.safetensors", "config.json"}) EXPECT_TRUE(test::has(done.out, part)) << done.out;
  EXPECT_TRUE(test::fs::exists(scratch / "out/model.safetensors"));
}

TEST(ConsolidateCommand, MemoryDoesNotGrowWithTheModel) {
  const test::Scratch scratch;
  const std::string small = test::write_sharded(scratch / "small", test::tiny_deck(), 1);
  // 100 MiB of weights; one tensor of 32 MiB.
  const std::string large = test::write_sharded(scratch / "large",
                                                test::tiny_deck({"model.width=512", "model.vocab=16384", "model.layers=4", "model.heads=8",
                                                                 "model.kv_heads=8", "model.head_dim=64", "model.ff_width=1024"}),
                                                2);
  const auto a = test::run_program(scratch, {"consolidate", small, scratch / "a"});
  const auto b = test::run_program(scratch, {"consolidate", large, scratch / "b"});
  ASSERT_EQ(a.status, 0) << a.err;
  ASSERT_EQ(b.status, 0) << b.err;
  EXPECT_GT(test::fs::file_size(scratch / "b/model.safetensors"), 95u << 20);
#ifndef TESSERA_SANITIZE  // whose own memory grows with every access
  EXPECT_LT(b.peak_bytes, std::int64_t{256} << 20);
  EXPECT_LT(b.peak_bytes - a.peak_bytes, std::int64_t{24} << 20) << "a chunk is 1 MiB";
#endif
}

TEST(ConsolidateCommand, BadUseHasTheUsageStatus) {
  const test::Scratch scratch;
  EXPECT_EQ(test::run_program(scratch, {"consolidate"}).status, 2);
  EXPECT_EQ(test::run_program(scratch, {"consolidate", "a", "b", "--format", "pickle"}).status, 2);
  const auto missing = test::run_program(scratch, {"consolidate", scratch / "none", scratch / "out"});
  EXPECT_EQ(missing.status, 4);
  EXPECT_TRUE(test::has(missing.err, scratch / "none")) << missing.err;
}

}  // namespace
}  // namespace tessera
