// Models in Hugging Face's cache: which folder is taken, and where nobody could say which.
#include "deck/import/named_model.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "../scratch.hpp"

namespace tessera::named_model_test {
namespace {

using namespace tessera::test;

/// A snapshot whose files are links into blobs, as the hub's client lays them.
std::string add_snapshot(const std::string& hub, const std::string& model, const std::string& commit) {
  const std::string of_model = hub + "/models--" + model, snapshot = of_model + "/snapshots/" + commit;
  for (const std::string& folder : {of_model + "/blobs", of_model + "/refs", snapshot}) fs::create_directories(folder);
  spill(of_model + "/blobs/" + commit + "f", "{}");
  fs::create_symlink("../../blobs/" + commit + "f", snapshot + "/config.json");
  return snapshot;
}

// Its reader says why; once another model was taken in its place.
TEST(NamedModel, AFolderThatCannotBeLookedAtIsTheOneThatWasGiven) {
  const Scratch dir;
  const std::string hub = dir / "hub", model = hub + "/models--org--some-model", given = model + "/refs";
  add_snapshot(hub, "org--some-model", "aaa");
  EXPECT_NE(find_model(given).folder, given);
  fs::create_symlink("config.json", given + "/config.json");  // a link to itself
  EXPECT_EQ(find_model(given).folder, given);
}

TEST(NamedModel, TheSnapshotThatMainLeadsTo) {
  const Scratch dir;
  const std::string hub = dir / "hub", model = hub + "/models--org--some-model";
  const std::string first = add_snapshot(hub, "org--some-model", "aaa");
  EXPECT_EQ(find_model(model).folder, first) << "the only one";
  const std::string second = add_snapshot(hub, "org--some-model", "bbb");
  EXPECT_EQ(find_model(model).folder, "");
  EXPECT_EQ(
      find_model(model).fault,
      "it is not the folder of one model. It has 2 snapshots, and refs/main links to none: give one of them, for example " + first + ".");
  spill(model + "/refs/main", "bbb");
  for (const std::string& given : {model, model + "/", model + "/snapshots", model + "/refs", hub, dir.path()}) {
    const NamedModel found = find_model(given);
    EXPECT_EQ(found.folder, second) << given;
    EXPECT_EQ(found.note, given + ": the model is taken from " + second);
    EXPECT_EQ(found.fault, "");
  }
  EXPECT_EQ(find_model(first).folder, first);
  EXPECT_EQ(find_model(first).note, "") << "it was named";
  add_snapshot(hub, "org--other", "ccc");
  EXPECT_TRUE(has(find_model(hub).fault, "It is Hugging Face's cache, with 2 models: give one of them, for example "))
      << find_model(hub).fault;
}

TEST(NamedModel, ANameOfTheHubWhereTheCacheHasIt) {
  const Scratch dir;
  const std::string snapshot = add_snapshot(dir / "home/hub", "org--some-model", "aaa");
  const std::string other = add_snapshot(dir / "cache", "org--some-model", "bbb");
  const char* names[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"};
  for (const char* name : names) unsetenv(name);
  setenv("HF_HOME", (dir / "home").c_str(), 1);
  EXPECT_EQ(find_model("org/some-model").folder, snapshot);
  EXPECT_EQ(find_model("org/missing").folder, "org/missing") << "who reads it says that it is not there";
  setenv("HF_HUB_CACHE", (dir / "cache").c_str(), 1);
  EXPECT_EQ(find_model("org/some-model").folder, other) << "before HF_HOME";
  for (const char* name : names) unsetenv(name);
}

TEST(NamedModel, AFolderIsItself) {
  const Scratch dir;
  for (const std::string& given : {dir.path(), dir / "nowhere", dir / "config.json", std::string("gpt2")}) {
    EXPECT_EQ(find_model(given).folder, given);
    EXPECT_EQ(find_model(given).note + find_model(given).fault, "");
  }
}

}  // namespace
}  // namespace tessera::named_model_test
