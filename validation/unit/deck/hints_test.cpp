#include "deck/schema/hints.hpp"

#include <gtest/gtest.h>

#include "../sample.hpp"
#include "deck/schema/schema.hpp"

namespace tessera::hints_test {
namespace {

TEST(Hints, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("stage", "stage"), 0);
  EXPECT_EQ(edit_distance("stage", "stge"), 1);
  EXPECT_EQ(edit_distance("steps", "stpes"), 1) << "a swap of neighbours is one edit";
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting", 3), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting", 2), 3) << "one more than the most";
  EXPECT_EQ(edit_distance("kitten", "sitting", 0), 1);
  EXPECT_EQ(edit_distance("a", "abcdef", 2), 3);
}

TEST(Hints, NearestOrNothing) {
  std::vector<std::string_view> words{"cosine", "linear", "constant"};
  EXPECT_EQ(nearest("cosin", words), "cosine");
  EXPECT_EQ(nearest("quadratic", words), "");
}

// Whatever single letter is lost, the key itself or another existing one is proposed, and for long words the key itself.
TEST(Hints, EveryKeyIsFoundWithOneLetterMissing) {
  for (const Key& key : deck_keys()) {
    std::string leaf(key.leaf());
    if (leaf.size() < 6 || !test::Sample::takes(key.name, 3)) continue;
    for (std::size_t i = 0; i < leaf.size(); ++i) {
      std::string broken = leaf;
      broken.erase(i, 1);
      EXPECT_EQ(hint_for_key(std::string(key.section()) + "." + broken).replacement, key.name);
    }
  }
}

TEST(Hints, WordsOfOthers) {
  EXPECT_EQ(hint_for_section("zero_optimization").replacement, "zero");
  EXPECT_EQ(hint_for_key("zero.stage3_prefetch_bucket_size").replacement, "zero.prefetch_bucket_size");
  EXPECT_EQ(hint_for_key("train_micro_batch_size_per_gpu").replacement, "batch.micro");
  EXPECT_EQ(hint_for_key("gradient_accumulation_steps").replacement, "batch.global");
  EXPECT_EQ(hint_for_key("optimizer.lr").replacement, "optimizer.learning_rate");
  EXPECT_EQ(hint_for_key("run.learning_rate").replacement, "optimizer.learning_rate");
  EXPECT_EQ(hint_for_key("model.hidden_size").replacement, "model.width");
  EXPECT_EQ(hint_for_key("model.num_hidden_layers").replacement, "model.layers");
  EXPECT_EQ(hint_for_key("n_layer").replacement, "model.layers");
  EXPECT_EQ(hint_for_key("activation.recompute_modules").replacement, "activation.keep");
  EXPECT_EQ(hint_for_key("memory.gpu_memory").replacement, "memory.device");
  EXPECT_EQ(hint_for_key("zero.offload_param.buffer_count").replacement, "");
  EXPECT_NE(hint_for_key("zero.offload_param.buffer_count").message.find("the plan sets"), std::string::npos);
  EXPECT_EQ(hint_for_key("zero.offload_optimizer.bufer_count").replacement, "zero.offload_optimizer.buffer_count");
  EXPECT_EQ(hint_for_key("aio.queue_depth").replacement, "nvme.queue_depth");
}

}  // namespace
}  // namespace tessera::hints_test
