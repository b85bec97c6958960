// What is said of paths that are no model's folder, and no checkpoint.
#include "models/model_folder.hpp"

#include <gtest/gtest.h>

#include "../scratch.hpp"

namespace tessera::model_folder_test {
namespace {

using namespace tessera::test;

TEST(ModelFolder, AModelWhereACheckpointIsWanted) {
  const Scratch dir;
  for (const char* weights : {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"}) {
    const std::string model = dir / fmt::format("a {}", weights);
    fs::create_directories(model);
    spill(model + "/" + weights, "");
    EXPECT_EQ(instead_of_checkpoint(model), "") << "without a config.json it may be anything";
    spill(model + "/config.json", "{}");
    const std::string name = fmt::format("a {}", weights);
    for (const char* slash : {"", "/"})
      EXPECT_EQ(instead_of_checkpoint(model + slash),
                fmt::format(" It is the folder of a Hugging Face model: `tessera import '{}{}' 'runs/{}'` makes a checkpoint from it, "
                            "'runs/{}/checkpoints/latest'.",
                            model, slash, name, name));
    EXPECT_EQ(instead_of_model(model), "");
  }
}

TEST(ModelFolder, TheCacheOfHuggingFace) {
  const Scratch dir;
  const std::string model = dir / "hub/models--meta-llama--Llama-3-8B";
  fs::create_directories(model + "/blobs");
  for (const char* commit : {"aaa", "bbb"}) fs::create_directories(model + "/snapshots/" + commit);
  fs::create_directories(model + "/refs");
  const std::string first = " It is a folder of Hugging Face's cache: give the snapshot in it, " + model + "/snapshots/aaa.";
  EXPECT_EQ(instead_of_model(model), first);
  spill(model + "/refs/main", "bbb\n");
  const std::string newest = " It is a folder of Hugging Face's cache: give the snapshot in it, " + model + "/snapshots/bbb.";
  for (const std::string& path : {model, model + "/", model + "/snapshots", model + "/blobs", dir / "hub", dir.path()})
    EXPECT_EQ(instead_of_model(path), newest) << path;
  EXPECT_EQ(instead_of_checkpoint(model),
            " It is a folder of Hugging Face's cache: `tessera import " + model +
                "/snapshots/bbb runs/Llama-3-8B` makes a checkpoint from it, runs/Llama-3-8B/checkpoints/latest.");
  EXPECT_EQ(instead_of_model(model + "/snapshots/bbb"), "") << "what is wanted, whatever it lacks";
  fs::remove_all(model + "/snapshots");
  fs::create_directories(model + "/snapshots");
  EXPECT_HAS(instead_of_model(model), "without a snapshot");
}

TEST(ModelFolder, ANameOfTheHub) {
  EXPECT_EQ(instead_of_model("meta-llama/Llama-3.2-1B"),
            " If it is the name of a model on Hugging Face, a folder on this machine is needed: `hf download meta-llama/Llama-3.2-1B "
            "--local-dir models/Llama-3.2-1B` gets it.");
  EXPECT_HAS(instead_of_checkpoint("meta-llama/Llama-3.2-1B"), "`tessera import models/Llama-3.2-1B runs/Llama-3.2-1B` makes a checkpoint");
  const Scratch dir;
  for (const std::string& other :
       {std::string("gpt2"), std::string("./models/x"), std::string("a/b/c"), std::string("/x/y"), std::string("../x"), std::string("x/"),
        std::string("x y/z"), std::string(""), std::string("runs/mine"), std::string("models/Llama-3-8B"), std::string("chats/a.jsonl"),
        std::string("mine/model.safetensors"), dir.path(), dir / "gone"})
    EXPECT_EQ(instead_of_model(other) + instead_of_checkpoint(other), "") << other;
}

TEST(ModelFolder, ARunWhereAModelIsWanted) {
  const Scratch dir;
  fs::create_directories(dir / "run/checkpoints/latest");
  spill(dir / "run/checkpoints/latest/checkpoint.h5", "");
  EXPECT_HAS(instead_of_model(dir / "run"), "It is a run: `tessera consolidate " + (dir / "run") + "/checkpoints/latest OUT`");
  EXPECT_HAS(instead_of_model(dir / "run/checkpoints/latest"), "It is a checkpoint: `tessera consolidate");
}

}  // namespace
}  // namespace tessera::model_folder_test
