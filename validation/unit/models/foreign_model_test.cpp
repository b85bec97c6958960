// What is said of weights and tokenizers in the files of other programs.
#include "models/foreign_model.hpp"

#include <gtest/gtest.h>

#include "../scratch.hpp"

namespace tessera::foreign_model_test {
namespace {

using namespace tessera::test;

/// A folder with these files, all empty; a name with a slash is of a folder in it.
std::string folder_with(const Scratch& dir, const std::string& name, const std::vector<std::string>& files) {
  fs::create_directories(dir / name);
  for (const std::string& file : files) {
    const fs::path path = fs::path(dir / name) / file;
    fs::create_directories(path.parent_path());
    spill(path.string(), "");
  }
  return dir / name;
}

TEST(ForeignWeights, OfPyTorchComeWithTheCommandThatConvertsThem) {
  const Scratch dir;
  const std::string one = folder_with(dir, "one", {"config.json", "pytorch_model.bin", "tokenizer.json"});
  EXPECT_EQ(foreign_weights(one),
            " pytorch_model.bin is a file of PyTorch, which is not read: `python3 -c 'import sys, torch, transformers as t; "
            "t.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=\"auto\").save_pretrained(sys.argv[2])' " +
                one + " " + one + "-safetensors` converts it to " + one + "-safetensors, a folder with model.safetensors. `cp " + one +
                "/token* " + one + "-safetensors` copies its tokenizer there.");
  const std::string many =
      folder_with(dir, "it's many", {"config.json", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"});
  EXPECT_HAS(foreign_weights(many), "pytorch_model.bin.index.json is a file of PyTorch");
  EXPECT_HAS(foreign_weights(many), "it'\\''s many-safetensors'` converts it to");
  const std::string pth = folder_with(dir, "pth", {"config.json", "model.pth", "optimizer.pt", "rng_state_0.pth", "training_args.bin"});
  EXPECT_HAS(foreign_weights(pth),
             " model.pth is a file of PyTorch, which is not read. If it holds the tensors of the model in config.json");
  EXPECT_HAS(foreign_weights(pth),
             "weights_only=True)); m.save_pretrained(sys.argv[3])' " + pth + " " + pth + "/model.pth " + pth + "-safetensors`");
  EXPECT_EQ(foreign_weights(folder_with(dir, "state", {"optimizer.pt", "rng_state_0.pth", "training_args.bin"})), "");
}

TEST(ForeignWeights, OfMistralAndMetaNameTheOtherFilesOfTheirRepositories) {
  const Scratch dir;
  const std::string mistral = folder_with(dir, "mistral", {"consolidated-00001-of-00002.safetensors", "params.json", "tekken.json"});
  EXPECT_HAS(foreign_weights(mistral),
             "consolidated-00001-of-00002.safetensors is in Mistral's own layout, but consolidated.safetensors.index.json, which belongs "
             "to it, is missing");
  EXPECT_HAS(foreign_weights(folder_with(dir, "alone", {"consolidated.safetensors"})), "but params.json, which belongs to it, is missing");
  EXPECT_HAS(foreign_weights(mistral), "`hf download ORG/NAME --exclude 'consolidated*' --local-dir models/NAME`");
  const std::string meta = folder_with(dir, "llama/original", {"consolidated.00.pth", "params.json", "tokenizer.model"});
  EXPECT_HAS(foreign_weights(meta), "consolidated.00.pth is in Meta's own layout (with params.json)");
  EXPECT_HAS(foreign_weights(meta), "--exclude 'original/*'");
  folder_with(dir, "llama", {"model-00001-of-00004.safetensors"});
  EXPECT_EQ(foreign_weights(meta), " consolidated.00.pth is in Meta's own layout, which is not read; " + (dir / "llama") +
                                       " has the same model in safetensors: give that.");
}

TEST(ForeignWeights, OfDeepSpeedComeWithBothCommands) {
  const Scratch dir;
  const std::string run = folder_with(
      dir, "run",
      {"latest", "zero_to_fp32.py", "global_step9/zero_pp_rank_0_mp_rank_00_optim_states.pt", "global_step9/mp_rank_00_model_states.pt"});
  const std::string said = foreign_weights(run);
  EXPECT_HAS(said, " global_step9 is a checkpoint of DeepSpeed, which is not read. `python3 " + run + "/zero_to_fp32.py " + run + " " +
                       run + "-fp32 --tag global_step9` converts it to pytorch_model.bin. Put");
  EXPECT_HAS(said, "dtype=\"float32\").save_pretrained(sys.argv[2])' " + run + "-fp32 " + run + "-safetensors` converts");
  EXPECT_EQ(foreign_weights(run + "/global_step9"), said) << "a step alone";
  EXPECT_EQ(foreign_weights(run + "/global_step9/"), said);
  const std::string bare = folder_with(dir, "bare", {"global_step9/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"});
  EXPECT_HAS(foreign_weights(bare), "`python3 -m deepspeed.utils.zero_to_fp32 " + bare + " ");
  const std::string universal = folder_with(dir, "u", {"latest_universal", "global_step9_universal/zero/embed/fp32.pt"});
  EXPECT_HAS(foreign_weights(universal), " global_step9_universal is a universal checkpoint of DeepSpeed");
  folder_with(dir, "u", {"global_step9/mp_rank_00_model_states.pt"});
  EXPECT_HAS(foreign_weights(universal), " global_step9 is a checkpoint of DeepSpeed") << "what it was made of is there";
}

TEST(ForeignWeights, OthersAreNamed) {
  const Scratch dir;
  EXPECT_HAS(foreign_weights(folder_with(dir, "adapter", {"adapter_config.json", "adapter_model.safetensors"})), "lora.init");
  EXPECT_HAS(foreign_weights(folder_with(dir, "shards", {"config.json", "model-00001-of-00002.safetensors"})),
             "model.safetensors.index.json, which names all files, is missing");
  EXPECT_HAS(foreign_weights(folder_with(dir, "gguf", {"llama-q4.gguf"})), "llama-q4.gguf is a file of llama.cpp");
  EXPECT_EQ(foreign_weights(folder_with(dir, "none", {"config.json", "README.md"})), "");
  EXPECT_EQ(foreign_weights(dir / "nowhere"), "");
}

TEST(ForeignTokenizer, IsNamedWithTheCommandThatConvertsIt) {
  const Scratch dir;
  const std::string llama = folder_with(dir, "llama", {"tokenizer.model", "tokenizer_config.json"});
  EXPECT_HAS(foreign_tokenizer(llama), " tokenizer.model is a tokenizer in another form. `python3 -c 'import sys, transformers as t; ");
  EXPECT_HAS(foreign_tokenizer(llama), "+ \"/tokenizer.json\")' " + llama + "` converts it to tokenizer.json");
  EXPECT_HAS(foreign_tokenizer(folder_with(dir, "gpt2", {"vocab.json", "merges.txt"})), " vocab.json is a tokenizer in another form");
  EXPECT_HAS(foreign_tokenizer(folder_with(dir, "mistral", {"tekken.json"})), " tekken.json is a tokenizer in Mistral's own form");
  EXPECT_EQ(foreign_tokenizer(folder_with(dir, "whole", {"tokenizer.model", "tokenizer.json"})), "");
  EXPECT_EQ(foreign_tokenizer(dir / "nowhere"), "");
}

}  // namespace
}  // namespace tessera::foreign_model_test
