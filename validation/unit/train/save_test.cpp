// The states of a save, in order: Save::next_state.
#include "train/save/save.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace tessera {
namespace {

using State = Save::State;

/// The states from the begin to the end.
std::vector<State> states_of(bool staged, bool shares_files) {
  Save save{.staged = staged};
  if (shares_files) save.layout.files = {0, 0};
  std::vector<State> states;
  do states.push_back(save.state = save.next_state());
  while (save.state != State::none);
  return states;
}

TEST(Save, WritesItsIndexAfterAllShards) {
  EXPECT_EQ(states_of(false, false), (std::vector{State::shards, State::index, State::none}));
  EXPECT_EQ(states_of(false, true), (std::vector{State::shards, State::seals, State::index, State::none}));
  EXPECT_EQ(states_of(true, true), (std::vector{State::staging, State::shards, State::seals, State::index, State::none}));
}

TEST(Save, BeginsAfterTheCopyOfAStep) {
  EXPECT_EQ((Save{.state = State::copying}.next_state()), State::shards);
  EXPECT_EQ((Save{.state = State::copying, .staged = true}.next_state()), State::staging);
}

TEST(Save, IsRepeatedOnlyWhileItsStateIsThere) {
  EXPECT_TRUE((Save{.state = State::shards}.can_repeat()));
  EXPECT_TRUE((Save{.state = State::staging, .staged = true}.can_repeat()));
  EXPECT_FALSE((Save{.state = State::shards, .staged = true}.can_repeat())) << "steps have gone on";
  EXPECT_TRUE((Save{.state = State::shards, .last_of_run = true, .staged = true}.can_repeat()));
}

TEST(Save, ReadsCopiesOnlyWhileUnderWay) {
  EXPECT_TRUE((Save{.state = State::copying, .copied = true}.reads_copies()));
  EXPECT_FALSE((Save{.state = State::none, .copied = true}.reads_copies()));
  EXPECT_FALSE((Save{.state = State::index}.reads_copies()));
}

}  // namespace
}  // namespace tessera
